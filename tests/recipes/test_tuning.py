"""Tuning by hand: what runs, its name, and that it never counts as the document's run."""

import pytest
from stored import publish

from steptime.errors import UserError
from steptime.judging.series import Series
from steptime.logs.training_log import Step, TrainingLog
from steptime.measure.metrics import measure
from steptime.measure.repeating import repeat_command
from steptime.recipes.bridge_launch import bridge_command
from steptime.recipes.planning import PlanRequest, parse_request, plan
from steptime.recipes.tuning import _parallelism
from steptime.store import judgement_queries
from steptime.store.run_queries import Store

LLAMA = {"workload": "llama3.1-25.04", "size": "70b", "dtype": "bf16", "gpu_type": "h100", "gpus": "64"}
NANO = {"workload": "nemotron3-26.08", "size": "nano", "gpu_type": "gb300", "gpus": "8"}
IMPORTED = {"workload": "llama3.1-26.08", "size": "70b", "gpu_type": "gb300", "gpus": "64"}


def planned(**options):
    return plan(PlanRequest(**options)).runs[0]


def test_another_parallelism_and_batch_are_planned_and_named():
    run = planned(**LLAMA, tensor_parallel=8, pipeline_parallel=2, micro_batch_size=2)
    spread, untuned = run.recipe.parallelism, planned(**LLAMA)
    assert (spread.tensor, spread.pipeline, spread.context, spread.data) == (8, 2, 2, 2)
    assert (spread.virtual_pipeline, run.recipe.micro_batch_size, run.recipe.gpus) == (None, 2, 64)
    assert run.tuning == "tp8 pp2 vp1 mbs2"
    assert run.label == "70b·bf16·64·tuned tp8 pp2 vp1 mbs2"
    assert run.experiment == f"{untuned.experiment}_tuned_tp8_pp2_vp1_mbs2"
    assert run.performance.trainer.tp_comm_overlap_cfg is None, "which is for the document's sizes"
    assert (untuned.tuning, untuned.label) == ("", "70b·bf16·64")
    whole = planned(**LLAMA, tensor_parallel=1, pipeline_parallel=16)
    assert [one.performance.trainer.tp_comm_overlap for one in (untuned, run, whole)] == [True, True, False]


def test_another_number_of_pipeline_stages_gives_all_stages_as_many_layers():
    recipe = planned(**LLAMA).recipe
    stages = {"virtual_pipeline": None, "first_stage_layers": 19, "last_stage_layers": 21}
    uneven = recipe.model_copy(update={"parallelism": recipe.parallelism.model_copy(update=stages)})
    same, changed = (_parallelism(uneven, way) for way in ({"tensor": 8}, {"pipeline": 2}))
    assert (same.first_stage_layers, same.last_stage_layers) == (19, 21)
    assert (changed.first_stage_layers, changed.last_stage_layers) == (None, None)


def test_what_the_document_has_is_no_tuning():
    assert planned(**LLAMA, tensor_parallel=4, global_batch_size=128, expert_parallel=1) == planned(**LLAMA)


def test_stages_of_a_model_may_count_its_embedding_and_its_output_as_layers():
    tuned = planned(**LLAMA | {"size": "405b", "gpus": "512"}, pipeline_parallel=16).recipe
    assert (tuned.model.num_layers, tuned.parallelism.stages) == (126, 16)


def test_a_recipe_by_name_gets_it_with_further_arguments():
    run = planned(**NANO, global_batch_size=256, arguments={"recompute_num_layers": "1; rm"})
    command = bridge_command(run)
    assert run.tuning == "gbs256 recompute_num_layers=1; rm"
    assert "--recompute_num_layers=1; rm" in command
    assert any(text.endswith("=256") or text == "256" for text in command)
    assert run.experiment.endswith("_tuned_gbs256_recompute_num_layers_1_rm")

    of_its_rules = IMPORTED | {"size": "405b", "gpu_type": "b300", "gpus": "256"}
    assert planned(**of_its_rules).performance.arguments["global_batch_size"] == "1536"
    run = planned(**of_its_rules, arguments={"global_batch_size": "768"})
    assert run.performance.arguments["global_batch_size"] == "768"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {**LLAMA, "tensor_parallel": 3},
            "64 GPUs are no multiple of tensor × pipeline × context parallel = 24",
        ),
        ({**LLAMA, "micro_batch_size": 7}, "tuned to mbs7: global batch size 128 is not a multiple"),
        (
            {**LLAMA, "arguments": {"x": "1"}},
            "`arguments` are for scripts of Megatron-Bridge, and llama3.1-25.04 70b",
        ),
        ({**LLAMA, "expert_parallel": 2}, "tuned to ep2: it has no experts to spread"),
        (
            {**LLAMA, "size": "8b", "tensor_parallel": 64, "context_parallel": 1},
            "tuned to tp64 cp1: 32 attention heads cannot be spread over tensor parallel 64",
        ),
        (
            {**LLAMA, "pipeline_parallel": 32, "tensor_parallel": 1, "context_parallel": 1},
            "tuned to tp1 pp32 cp1: 80 layers cannot be divided into 32 pipeline stages",
        ),
        (
            {**NANO, "expert_parallel": 16},
            "tuned to ep16: 8 GPUs are no multiple of expert × expert tensor × pipeline parallel = 16",
        ),
        ({**NANO, "arguments": {"--x": "1"}}, "argument '--x': write its name without dashes"),
        ({**NANO, "arguments": {"num_gpus": "9"}}, "argument 'num_gpus' is already set"),
        ({**IMPORTED, "arguments": {"num_gpus": "9"}}, "argument 'num_gpus' is already set"),
        (
            {**IMPORTED, "arguments": {"profiling.profile_step_start": "9"}},
            "argument 'profiling.profile_step_start' is already set",
        ),
        ({**IMPORTED, "tensor_parallel": 2}, "its launch gives Megatron-Bridge no {tensor}; give upstream's"),
        ({**IMPORTED, "global_batch_size": 512}, "gives Megatron-Bridge no {global_batch_size}"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(options, sentence):
    with pytest.raises(UserError) as refused:
        plan(parse_request(options))
    assert sentence in str(refused.value)


def test_it_is_judged_apart_from_the_document_and_its_published_number(tmp_path, make_result):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    published, tuned = planned(**LLAMA), planned(**LLAMA, context_parallel=1, global_batch_size=128)
    for number in range(7):
        add(store, make_result, published, f"own-{number}", 5.0 + number / 1000, at=1e9 + number)
    add(store, make_result, tuned, "tuned", 9.0, at=2e9)

    [row] = judgement_queries.rows_with_judgements(store, Series.from_run(tuned).key)
    assert (row["series_state"], row["baseline_runs"]) == ("insufficient history", 0)
    assert (row["published_step_time_s"], row["against_publication"]) == (None, None)
    assert store.run("own-6")["published_step_time_s"] is not None
    assert "tuned cp1" in Series.from_run(tuned).label
    command = repeat_command(tuned, PlanRequest(**LLAMA, context_parallel=1))
    assert command is not None
    assert "--context-parallel 1" in command


def add(store, make_result, run, name, step_s, *, at):
    steps = tuple(
        Step(global_step=step, step_time_s=step_s, loss=1.0, global_batch_size=128)
        for step in range(run.max_steps)
    )
    log = TrainingLog(path=f"/x/{name}", format="nemo2", bytes_read=1, steps=steps)
    publish(store, make_result(name, run=run, log=log, measurement=measure(run, log), submitted_at=at))
