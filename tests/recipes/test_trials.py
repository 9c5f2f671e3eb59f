"""Trials: their files, the variants and rounds that follow, and every refusal with its remedy."""

import json
from collections import Counter

import pytest
import stored
import yaml
from called import steptime

from steptime.errors import UserError
from steptime.judging.series import Series
from steptime.recipes.planning import parse_request, plan
from steptime.recipes.sweep_planning import expand_cell, plan_sweep
from steptime.recipes.sweeps import load_sweep
from steptime.recipes.trials import list_trials, load_trial, plan_trial, round_order
from steptime.settings import shipped
from steptime.staging.checking import check_config_files, checked_trial
from steptime.store.run_queries import Store

TINY = {"workload": "llama3.1", "size": "tiny", "gpus": 1}
BATCHES = {"micro_batch_size": [1, 2, 3, 4]}


@pytest.fixture
def write(config_folder, monkeypatch):
    """Return a function that writes the trial `quick`, the only one configured, with these fields."""
    (config_folder / "trials").mkdir()
    for entry in shipped("config").iterdir():
        if entry.name != "trials":
            (config_folder / entry.name).symlink_to(entry)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config_folder))

    def write(**fields):
        content = {"name": "quick", "gpu_hours_max": 100, "run": TINY, "vary": BATCHES, **fields}
        path = config_folder / "trials" / "quick.yaml"
        given = {name: value for name, value in content.items() if value is not None}
        path.write_text(yaml.safe_dump(given, sort_keys=False))
        return path

    return write


@pytest.fixture
def planned(write):
    """Return a function that writes a trial with these fields and plans it."""

    def planned(**fields):
        write(**fields)
        return plan_trial(load_trial("quick"))

    return planned


@pytest.mark.parametrize("name", list_trials())
def test_every_shipped_trial_can_be_run(name):
    assert checked_trial(name).cells


def test_combinations_that_cannot_run_are_left_out_with_the_reason(
    planned,
):
    rules = planned().trial
    assert rules is not None
    assert rules.variants == ("micro_batch_size=1", "micro_batch_size=2", "micro_batch_size=4")
    assert list(rules.left_out) == ["micro_batch_size=3"]
    assert (
        "global batch size 8 is not a multiple of micro batch size 3" in rules.left_out["micro_batch_size=3"]
    )


def test_a_model_that_cannot_fit_is_left_out_by_its_estimated_memory(planned, config_folder):
    (config_folder / "clusters").unlink()
    (config_folder / "clusters").mkdir()
    local = (shipped("config") / "clusters" / "local.yaml").read_text()
    h100 = local.replace("name: local", "name: h100").replace("gpu_type: cpu", "gpu_type: h100")
    (config_folder / "clusters" / "h100.yaml").write_text(h100)
    made = planned(
        cluster="h100",
        run={"workload": "llama3.1", "size": "70b", "dtype": "fp8", "gpus": 64},
        vary={"tensor_parallel": [2, 4], "pipeline_parallel": [1, 4]},
        gpu_hours_max=10_000,
    )
    assert made.trial is not None
    assert "an estimate" in made.trial.left_out["tensor_parallel=2,pipeline_parallel=1"]


def test_each_variant_runs_once_in_each_round_in_an_order_that_the_seed_gives(
    planned,
):
    variants = {name: {"environment": {"X": name}} for name in ("a", "b", "c", "d")}
    made = planned(vary=None, variants=variants, rounds_max=5, seed=7)
    runs = [run for cell in made.cells for run in expand_cell(cell)]
    positions = [run.trial for run in runs if run.trial is not None]
    assert [position.index for position in positions] == list(range(20))
    assert Counter((position.round, position.variant) for position in positions) == {
        (number, variant): 1 for number in range(1, 6) for variant in variants
    }
    orders = [tuple(round_order(positions[0].rules, number)) for number in range(1, 6)]
    assert len(set(orders)) > 1
    assert [position.variant for position in positions] == [name for order in orders for name in order]
    assert runs[0].environment == {"X": orders[0][0]}
    assert made.cells[0].label == f"round 1 · {orders[0][0]}" == runs[0].name
    assert planned(vary=None, variants=variants, rounds_max=5, seed=7) == made
    assert planned(vary=None, variants=variants, rounds_max=5, seed=8).cells != made.cells


def test_runs_of_a_trial_have_a_series_apart_from_that_of_the_weekly_cell(
    planned,
):
    made = planned(vary=None, variants={"default": {}, "other": {"environment": {"X": "1"}}})
    (weekly,) = plan(parse_request(TINY | {"gpus": "1"})).runs
    cell = Series.from_run(weekly)
    of_trial = {Series.from_run(run) for one in made.cells for run in expand_cell(one)}
    assert cell.is_judged
    assert cell not in of_trial
    assert not any(series.is_judged for series in of_trial)


def test_a_variant_adds_its_variables_to_those_of_the_run(planned):
    made = planned(
        run=TINY | {"environment": {"A": "1", "B": "1"}},
        vary=None,
        variants={"default": {}, "other": {"environment": {"B": "2"}}},
    )
    assert made.trial is not None
    by_variant = {
        run.trial.variant: run.environment for cell in made.cells for run in expand_cell(cell) if run.trial
    }
    assert by_variant == {"default": {"A": "1", "B": "1"}, "other": {"A": "1", "B": "2"}}


def test_equal_variants_may_be_compared(planned):
    made = planned(vary=None, variants={"a": {}, "b": {}})
    assert made.trial is not None
    assert made.trial.variants == ("a", "b")


def test_only_rounds_within_the_budget_are_reserved(planned):
    """A run takes at most a sixth of a GPU-hour, and a round of three variants half of one."""
    made = planned(gpu_hours_max=2.2, rounds_max=16)
    assert made.gpu_hours_max == 2.2
    assert len(made.cells) == 48
    assert len(made.reserving_cells) == 13
    assert planned(gpu_hours_max=100, rounds_max=2).gpu_hours_max == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"vary": None}, "either variants, by name, or vary"),
        ({"variants": {"a": {}, "b": {}}}, "either variants, by name, or vary"),
        ({"vary": None, "variants": {"a": {}}}, "has 1 variant: a trial compares 2 to 16"),
        ({"vary": {"micro_batch_size": [1]}}, "one combination only"),
        ({"vary": {"micro_batch_size": [1, 1]}}, "twice"),
        ({"vary": {"micro_batch_size": []}}, "empty list"),
        ({"vary": {"micro_batch_sise": [1, 2]}}, "did you mean 'micro_batch_size'"),
        ({"vary": {"gpus": [1, 2]}}, "unknown field 'gpus'"),
        ({"vary": {"micro_batch_size": ["1", 2]}}, "a whole number"),
        ({"vary": {"micro_batch_size": [3, 5]}}, "micro_batch_size=5: .*not a multiple"),
        (
            {"vary": {"environment": [{"X": str(number)} for number in range(17)]}},
            "17 variants, more than 16",
        ),
        ({"vary": None, "variants": {"a": {}, "b": {"checkpoint": True}}}, "unknown field 'checkpoint'"),
        (
            {"vary": None, "variants": {"a": {}, "b": {"micro_batch_size": 3}}},
            "'quick', b: .*multiple of micro",
        ),
        ({"vary": None, "variants": {"a": {}, "b ; rm": {}}}, "letters, digits"),
        (
            {"run": TINY | {"gpus": "1,2"}},
            "^trial 'quick', micro_batch_size=1, micro_batch_size=2, micro_batch_size=4: gpus 1,2 means 2 "
            "runs.*: set gpus in run to one of 1, 2.\n",
        ),
        (
            {"run": {"workload": "llama3.1", "size": "tiny"}, "vary": {"micro_batch_size": [1, 2]}},
            "^trial 'quick': without gpus, run means 2 runs",
        ),
        ({"run": TINY | {"size": "small"}}, "^trial 'quick': unknown size 'small'[^\n]*$"),
        ({"rounds_mx": 3}, "rounds_mx: unknown field, perhaps 'rounds_max' is meant.$"),
        (
            {"x": 3},
            "x: unknown field. Valid are: name, description, cluster, run, variants, vary, .*same_nodes.$",
        ),
        ({"run": TINY | {"repeats": 2}}, "the rounds of a trial are its repeats"),
        ({"run": TINY | {"checkpoint": True}}, "leave out checkpoints"),
        ({"run": TINY | {"dtype": ["bf16", "fp8"]}}, "one value here"),
        ({"run": {"size": "tiny"}}, "names no workload"),
        ({"gpu_hours_max": 0.9}, "raise gpu_hours_max of 0.9"),
        ({"rounds_max": 1}, "at least 2"),
        ({"least_difference_percent": 0}, "at least 0.1"),
        ({"name": "other"}, "differs from the file's name"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(write, fields, says):
    write(**fields)
    with pytest.raises(UserError, match=f"(?s){says}"):
        checked_trial("quick")


def test_a_mistake_is_told_when_all_files_are_checked(write):
    write(rounds_max=1)
    with pytest.raises(UserError, match="at least 2"):
        check_config_files()


def test_the_command_shows_variants_order_and_cost(
    write,
    make_result,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    stored.write(Store(), make_result(gpus=1))
    write(rounds_max=4)
    assert steptime("trial", "plan", "quick") == 0
    shown = capsys.readouterr().out
    assert "(1 by the history of their series; 2 left out: " in shown, "of the three variants of one round"
    assert "left out: micro_batch_size=3: " in shown
    assert "trial quick: 12 jobs, at most 2.00 GPU-hours" in shown
    assert steptime("trial", "plan", "quick", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in told["variants"]] == [f"micro_batch_size={size}" for size in (1, 2, 4)]
    assert [one["round"] for one in told["rounds"]] == [1, 2, 3, 4]
    assert told["left_out"][0]["variant"] == "micro_batch_size=3"


def test_the_command_names_variants_that_are_the_same_run(write, capsys):
    write(vary=None, variants={"two": {"micro_batch_size": 2}, "default": {}, "one": {"micro_batch_size": 1}})
    assert steptime("trial", "plan", "quick") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("equal: ")]
    assert told == ["equal: default, one are the same run: only noise can differ"]


def test_a_mistake_never_gives_a_stack_trace(write, capsys):
    write(vary={"micro_batch_size": [3, 5]})
    assert steptime("trial", "plan", "quick") == 1
    assert "Traceback" not in capsys.readouterr().err
    assert steptime("trial", "plan", "quik") == 1
    assert "unknown trial 'quik'" in capsys.readouterr().err


SWEEP = """# The team's sweep.
name: night
cluster: local
gpu_hours_max: 10
runs:
  # Every week:
  - workload: llama3.1
    gpus: 1 # one rank
# The end.
"""


@pytest.fixture
def sweep(write, config_folder):
    """A sweep of the team's, and the trial `quick`."""
    write()
    (config_folder / "sweeps").unlink()
    (config_folder / "sweeps").mkdir()
    path = config_folder / "sweeps" / "night.yaml"
    path.write_text(SWEEP)
    return path


def test_a_variant_is_adopted_as_a_line_of_a_sweep(sweep, capsys):
    adopt = ("trial", "adopt", "quick", "micro_batch_size=2")
    line = "- {cluster: local, workload: llama3.1, size: tiny, gpus: 1, micro_batch_size: 2}"
    assert steptime(*adopt) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert steptime(*adopt, "--write", "night") == 0
    before, after = SWEEP.split("# The end.")
    assert sweep.read_text() == f"{before}  {line}\n# The end.{after}"
    assert len(plan_sweep(load_sweep("night")).cells) == 2


def test_a_variant_of_that_name_a_shipped_sweep_and_runs_in_brackets_are_refused(sweep, capsys):
    assert steptime("trial", "adopt", "quick", "micro_batch_size=5") == 1
    assert "unknown variant 'micro_batch_size=5'" in capsys.readouterr().err
    adopt = ("trial", "adopt", "quick", "micro_batch_size=2", "--write")
    assert steptime(*adopt, "example-weekly") == 1
    assert "ships with steptime" in capsys.readouterr().err
    sweep.write_text("name: night\ngpu_hours_max: 10\nruns: [{workload: llama3.1, gpus: 1}]\n")
    before = sweep.read_text()
    assert steptime(*adopt, "night") == 1
    assert "runs in brackets" in capsys.readouterr().err
    assert sweep.read_text() == before
