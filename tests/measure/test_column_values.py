"""The values of a measured run, by column."""

import pytest
import stored

from steptime.clusters.config import load_cluster
from steptime.measure import column_values as module
from steptime.measure.column_values import column_values
from steptime.recipes.flops import model_flops
from steptime.recipes.models import Mode
from steptime.store.columns import (
    BY_NAME,
    COLUMNS,
    COMPUTED,
    MEASURED,
    planned_values,
)
from steptime.store.run_queries import Store


def test_a_result_as_a_row(tmp_path, make_result):
    """A step takes half a second on 2 GPUs and has 16 samples of 128 tokens."""
    result = make_result("job-1", step_times=[0.5] * 20, map_index=3)
    row, provenance = column_values(result), result.submitted.provenance
    versions = (result.log.started or {})["versions"]
    flops = model_flops(result.run.recipe.model, "llama3.1-25.04")
    told = {name: value for name, value in row.items() if value not in (None, "")}
    assert told == {
        **{"job_name": "job-1", "label": "tiny·fp32·2"},
        **{"workload": "llama3.1-25.04", "size": "tiny", "dtype": "fp32", "gpu_type": "cpu"},
        **{"scaling": "weak", "proxy": False, "cluster": "local", "mode": "performance"},
        **{"for_judging": True, "repeat": 1},
        **{"gpus": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1},
        **{"data_parallel": 2, "expert_parallel": 1, "global_batch_size": 16, "micro_batch_size": 1},
        **{"window": "10:19", "steps_in_window": 10},
        **{"step_time_mean_s": 0.5, "step_time_std_s": 0, "step_time_median_s": 0.5},
        **{"steady_steps": "0:19", "steady_step_time_s": 0.5, "steady_step_time_iqr_s": 0},
        **{"tokens_per_s": 4096, "tokens_per_s_per_gpu": 2048, "flops_formula": "llama3.1-25.04"},
        **{"model_tflops_per_gpu": pytest.approx(flops * 16 / 0.5 / 2 / 1e12)},
        **{"peak_memory_gib": 80},
        **{"goodput_percent": pytest.approx(100 * 10 / 38.5), "in_steps_s": 10},
        **{"first_steps_s": 0, "in_checkpoints_s": 0},
        **{"gpu_hours": pytest.approx(2 * 38.5 / 3600), "submitted_at": 1.79e9},
        **{"started_at": 1.79e9 + 1.5, "ended_at": 1.79e9 + 40, "queue_wait_s": 1.5, "nodes": "localhost"},
        **{
            "dag_id": "steptime_llama3.1-25.04",
            "dag_run_id": "manual__2026-11-21",
            "task_id": "wait",
            "map_index": 3,
        },
        **{"variables": "OMP_NUM_THREADS=1", "trainer_sha256": "b" * 64},
        **{"versions": ", ".join(f"{name} {version}" for name, version in versions.items())},
        **{"steptime_version": provenance.steptime_version, "git_commit": provenance.git_commit},
        "log_path": result.log.path,
    }
    stored.write(store := Store(f"sqlite:///{tmp_path / 's.db'}"), result)
    (kept,) = store.results()
    assert list(kept) == [column.name for column in COLUMNS]
    assert {name: kept[name] for name in row} == row
    assert kept["state"] == "valid"
    planned = {name: value for name, value in row.items() if BY_NAME[name].of_run}
    assert planned_values(result.run) == planned


def test_every_number_that_is_declared_as_a_column_is_one():
    assert [column for column in COLUMNS if column.name in MEASURED] == list(MEASURED.values())


def test_tokens_have_a_price_if_the_clusters_file_has_that_of_gpus(make_result, monkeypatch):
    """2,048 tokens take half a second on 2 GPUs at 3.60 an hour each: 2,048 tokens/s and GPU."""

    def price(result):
        return column_values(result)["price_per_million_tokens"]

    result = make_result(step_times=[0.5] * 20)
    assert price(result) is None
    with_price = load_cluster("local").model_copy(update={"price_per_gpu_hour": 3.6})
    monkeypatch.setattr(module, "load_cluster", lambda _: with_price)
    assert price(result) == pytest.approx(1e6 * 0.001 / 2048)
    monkeypatch.undo()
    elsewhere = result.submitted.run.model_copy(update={"cluster": "gone"})
    gone = result.submitted.model_copy(update={"run": elsewhere})
    assert price(result.model_copy(update={"submitted": gone})) is None


@pytest.mark.parametrize(
    ("mode", "over", "mark"),
    [
        (Mode.PERFORMANCE, 1 / 0.95, "passes"),
        (Mode.PERFORMANCE, 1.053, "below"),
        (Mode.PERFORMANCE, None, None),
        (Mode.CHECKPOINT_LOAD, 1.0, None),
    ],
)
def test_a_performance_run_passes_its_publication_or_is_below_it(make_result, mode, over, mark):
    def against_publication(result):
        return column_values(result)["against_publication"]

    result = make_result(mode=mode)
    assert result.measurement is not None
    measured = result.measurement.model_copy(update={"step_time_over_published": over})

    assert against_publication(result.model_copy(update={"measurement": measured})) == mark
    assert against_publication(result.model_copy(update={"measurement": None})) is None


def test_each_column_of_one_run_is_computed(make_result):
    by_the_store = {"state", "reason", "warnings", "published_at", *COMPUTED}
    assert column_values(make_result()).keys() == {column.name for column in COLUMNS} - by_the_store
