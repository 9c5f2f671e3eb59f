"""Sweeps: their files, the cells that follow, and every refusal with its remedy."""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from called import steptime

from steptime.errors import UserError
from steptime.recipes import sweep_planning, sweeps
from steptime.recipes.planning import plan
from steptime.recipes.request import option_fields
from steptime.recipes.sweep_planning import Cell, SweepPlan, confirmation_cells, expand_cell, plan_sweep
from steptime.recipes.sweeps import NodeSweep, excludes, list_sweeps, load_sweep
from steptime.settings import shipped


def test_a_type_of_gpu_is_looked_for_on_all_clusters_and_the_first_that_has_it_is_taken(monkeypatch):
    types = {"a": "b200", "b": "h100", "c": "h100", "d": "gb200"}
    clusters = {name: SimpleNamespace(gpu_type=gpu_type) for name, gpu_type in types.items()}
    monkeypatch.setattr(sweeps, "readable_clusters", lambda: clusters)
    found = [sweeps.cluster_with(gpu_type) for gpu_type in ("b200", "h100", "gb200", "gb300", None)]
    assert found == ["a", "b", "d", None, None]


TINY = {"workload": "llama3.1", "size": "tiny", "gpus": [1, 2]}
LLAMA = {"workload": "llama3.1", "size": ["8b", "70b"], "dtype": ["bf16", "fp8"], "gpus": "8-128"}


@pytest.fixture
def write(config_folder, monkeypatch):
    """Return a function that writes a sweep `night` into a config with a cluster of H100s."""
    config = config_folder
    (config / "sweeps").mkdir()
    for entry in shipped("config").iterdir():
        if entry.name not in ("sweeps", "clusters"):
            (config / entry.name).symlink_to(entry)
    (config / "clusters").mkdir()
    local = (shipped("config") / "clusters" / "local.yaml").read_text()
    (config / "clusters" / "local.yaml").write_text(local)
    slurm = (shipped("config") / "clusters" / "mini-slurm.yaml").read_text()
    (config / "clusters" / "mini-slurm.yaml").write_text(slurm)
    h100 = local.replace("name: local", "name: h100").replace("gpu_type: cpu", "gpu_type: h100")
    (config / "clusters" / "h100.yaml").write_text(h100)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))

    def write(**fields):
        content = {"name": "night", "gpu_hours_max": 1e6, "runs": [TINY], **fields}
        path = config / "sweeps" / "night.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def planned(write):
    """Return a function that writes a sweep and plans it."""

    def planned(**fields):
        write(**fields)
        return plan_sweep(load_sweep("night"))

    return planned


def labels(made):
    return [cell.label for cell in made.cells]


@pytest.mark.parametrize("name", [name for name in list_sweeps() if load_sweep(name).has_cluster])
def test_every_shipped_sweep_can_be_run_on_its_cluster(name):
    made = plan_sweep(load_sweep(name))
    assert made.cells
    assert all(plan(cell.request).runs[0].recipe.gpus == cell.gpus for cell in made.cells)
    assert all(
        expand_cell(Cell.model_validate(cell.model_dump())) == expand_cell(cell) for cell in made.cells
    )


def test_the_example_in_the_weekly_sweep_is_one(planned):
    text = (shipped("config") / "sweeps" / "example-weekly.yaml").read_text()
    lines = text.partition("it could be:\n")[2].splitlines()
    example = yaml.safe_load("\n".join(line.removeprefix("#").removeprefix("   ") for line in lines))
    made = planned(**example)
    assert {cell.request.cluster for cell in made.cells} == {"h100"}
    assert made.needs_approval
    assert [cell.jobs for cell in made.cells if cell.request.checkpoint] == [3]


def test_a_list_of_gpus_is_what_it_is_on_the_command_line(planned):
    listed = planned(runs=[TINY])
    assert labels(listed) == ["llama3.1·tiny·fp32·1", "llama3.1·tiny·fp32·2"]
    assert labels(planned(runs=[{**TINY, "gpus": "1-2"}])) == labels(listed)


def test_lists_are_a_matrix_over_the_scales_that_each_size_has(planned):
    made = planned(cluster="h100", runs=[LLAMA])
    assert len(made.cells) == 2 * 5 + 2 * 2
    assert labels(made)[-3:] == ["llama3.1·70b·bf16·128", "llama3.1·70b·fp8·64", "llama3.1·70b·fp8·128"]


def test_exclusions_are_partial(planned):
    made = planned(
        cluster="h100",
        runs=[LLAMA, {"workload": "nemotron4", "size": "15b", "gpus": "16-64"}],
        exclude=[{"size": "70b", "dtype": "fp8"}, {"gpus": [8, 16]}, {"workload": "llama3.1", "gpus": 128}],
    )
    assert labels(made) == [
        *(f"llama3.1·8b·{dtype}·{gpus}" for dtype in ("bf16", "fp8") for gpus in (32, 64)),
        "llama3.1·70b·bf16·64",
        "nemotron4·15b·fp8·32",
        "nemotron4·15b·fp8·64",
    ]


def test_an_exclusion_also_saves_a_combination_that_no_recipe_has(planned):
    entry = {"workload": ["llama3.1", "nemotron-h"], "dtype": ["bf16", "fp8"], "gpus": "8-2048"}
    with pytest.raises(UserError, match=r"runs\.0 \(workload nemotron-h, dtype bf16, .*unknown dtype 'bf16'"):
        planned(cluster="h100", runs=[entry])
    made = planned(cluster="h100", runs=[entry], exclude=[{"workload": "nemotron-h", "dtype": "bf16"}])
    assert {cell.request.dtype for cell in made.cells if "nemotron-h" in cell.label} == {"fp8"}


def test_each_repeat_is_a_cell_and_a_checkpoint_goes_with_the_first(
    planned,
):
    made = planned(repeats=2, runs=[{**TINY, "checkpoint": True}])
    assert [(cell.label, cell.jobs, cell.gpus) for cell in made.cells] == [
        ("llama3.1·tiny·fp32·1", 1, 1),
        ("llama3.1·tiny·fp32·1·repeat 2", 1, 1),
        ("llama3.1·tiny·fp32·2·checkpoint true", 3, 2),
        ("llama3.1·tiny·fp32·2·checkpoint false·repeat 2", 1, 2),
    ]


def test_an_entry_may_have_its_own_repeats_and_cluster(planned):
    eight = {"workload": "llama3.1", "size": "8b", "gpus": 8, "repeats": 1, "cluster": "h100"}
    made = planned(repeats=2, runs=[TINY, eight])
    assert [(cell.request.cluster, cell.repeat) for cell in made.cells] == [
        *(("local", repeat) for _ in range(2) for repeat in (1, 2)),
        ("h100", 1),
    ]


def test_cells_of_one_label_are_told_apart_by_what_differs(planned):
    made = planned(runs=[{**TINY, "gpus": 4, "scaling": ["weak", "strong"], "tensor_parallel": [1, 2]}])
    assert labels(made) == [
        f"llama3.1·tiny·fp32·4·scaling {scaling}·tensor_parallel {tensor}"
        for scaling in ("weak", "strong")
        for tensor in (1, 2)
    ]


def test_cells_cost_and_run_what_the_whole_request_does(planned):
    made = planned(
        cluster="h100", runs=[{**LLAMA, "size": "8b", "dtype": "bf16", "checkpoint": True, "repeats": 3}]
    )
    alone = [plan(cell.request) for cell in made.cells]
    together = plan(
        made.cells[0].request.model_copy(update={"gpus": "8-128", "checkpoint": True, "repeats": 3})
    )
    assert made.gpu_hours_max == pytest.approx(together.gpu_hours_max)
    assert [plan_alone.gpu_hours_max for plan_alone in alone] == [cell.gpu_hours_max for cell in made.cells]
    assert [len(plan_alone.all_runs) for plan_alone in alone] == [cell.jobs for cell in made.cells]
    assert sum(cell.jobs for cell in made.cells) == len(together.all_runs)


def test_approval_is_asked_for_above_the_limit_only(planned):
    cost = planned().gpu_hours_max
    assert cost == 0.5
    assert not planned().needs_approval
    assert not planned(approval_above_gpu_hours=cost).needs_approval
    assert planned(approval_above_gpu_hours=cost - 0.01).needs_approval
    assert planned(approval_above_gpu_hours=0).needs_approval
    assert not planned(approval_above_gpu_hours=None).needs_approval


def test_a_plan_that_costs_exactly_its_budget_is_run(planned):
    assert planned(gpu_hours_max=0.5).cells


def test_confirmation_cells_run_a_cell_again_under_names_of_their_own(
    planned,
):
    cell = planned(runs=[{**TINY, "gpus": 2, "checkpoint": True}]).cells[0]
    for checkpoint in (False, True):
        confirmations = confirmation_cells(cell, 2, checkpoint=checkpoint, after=3)
        assert [
            (confirmation.label, confirmation.repeat, confirmation.jobs) for confirmation in confirmations
        ] == [
            (f"{cell.label}·confirmation {number}", 3 + number, 3 if checkpoint else 1) for number in (1, 2)
        ]
        assert {
            (confirmation.sweep, confirmation.entry, confirmation.request.checkpoint)
            for confirmation in confirmations
        } == {("night", 0, checkpoint)}


def test_as_many_as_there_may_be_are_planned(planned, monkeypatch):
    assert sweep_planning.MOST_CELLS == 1024
    monkeypatch.setattr(sweep_planning, "MOST_CELLS", 4)
    assert len(planned(runs=[{**TINY, "checkpoint": True}], repeats=2).cells) == 4
    with pytest.raises(UserError, match="sweep 'night' has more than 4 runs, the most that Airflow maps"):
        planned(runs=[TINY, {**TINY, "gpus": 4}], repeats=2)
    monkeypatch.setattr(sweeps, "MOST_COMBINATIONS", 4)
    lists = {"size": ["tiny"], "scaling": ["weak", "strong"], "tensor_parallel": [1, 2]}
    entry = {"workload": "llama3.1", "gpus": 4, **lists}
    assert len(planned(runs=[entry]).cells) == 4
    with pytest.raises(UserError, match=r"runs\.0 has 8 combinations, more than 4: shorten its lists"):
        planned(runs=[{**entry, "max_steps": [20, 30]}])


def test_a_plan_comes_back_from_json(planned):
    made = planned(repeats=2)
    again = SweepPlan.model_validate_json(made.model_dump_json())
    assert all("runs" not in cell for cell in made.model_dump()["cells"]), "Airflow carries it to every task"
    assert again.model_dump() == made.model_dump()
    assert [expand_cell(cell) for cell in again.cells] == [expand_cell(cell) for cell in made.cells]


def test_a_workload_is_excluded_with_or_without_its_release():
    values = {"workload": "llama3.1-25.04", "proxy": True}
    assert excludes({"workload": "llama3.1"}, values)
    assert excludes({"workload": "Llama3.1-25.04", "proxy": True}, values)
    assert not excludes({"workload": "llama3.1", "proxy": False}, values)
    assert not excludes({"size": "8b"}, values)
    assert excludes({"workload": "nemotron-h"}, {"workload": "nemotron-h-25.05"})
    assert not excludes({"workload": "nemotron"}, {"workload": "nemotron-h-25.05"})
    assert not excludes({"workload": "llama3"}, values)


REFUSALS = [
    ({"runs": [{**TINY, "size": ["tiny", "tiny"]}]}, "runs.0.size.1: 'tiny' is in the list twice"),
    ({"runs": [{**TINY, "gpus": [1, 1]}]}, "runs.0.gpus.1: '1' is in the list twice"),
    ({"runs": [{**TINY, "gpus": True}]}, "runs.0.gpus: has to be text, not true (put it in quotes)"),
    (
        {"runs": [{**TINY, "environment": {"A": 1}}]},
        "runs.0.environment.A: has to be text, not 1 (put it in quotes)",
    ),
    ({"runs": [{**TINY, "repeats": [1, 2]}]}, "runs.0.repeats: repeats is one number, not a list"),
    ({"repeats": 101}, "repeats: has to be at most 100, not 101"),
    ({"name": "a b"}, "name: has to be small letters and digits, with - or _ between, as in"),
    ({"exclude": [{"size": "8b"}]}, "exclude.0 (size 8b) excludes nothing: correct it, or leave it out."),
    ({"exclude": [{"size": "tiny"}]}, "sweep 'night' excludes every run that it asks for"),
    ({"cluster": "moon"}, "runs.0 (workload llama3.1, size tiny, gpus 1,2): unknown cluster 'moon'"),
    ({"runs": [{**TINY, "size": "8b", "gpus": 8}]}, "cluster 'local' has cpu, not h100"),
    ({"runs": [{**TINY, "workload": "lama"}]}, "unknown workload 'lama'"),
    ({"runs": [TINY, {**TINY, "checkpoint": True}]}, "runs.0 asks for llama3.1·tiny·fp32·1, too"),
    (
        {"gpu_hours_max": 0.4, "runs": [{**TINY, "gpus": 1}, {**TINY, "gpus": 2}]},
        "sweep 'night' may cost 0.50 GPU-hours, more than its gpu_hours_max of 0.40: "
        "runs.0 (llama3.1) 0.17, runs.1 (llama3.1) 0.33; shorten it, or raise gpu_hours_max.",
    ),
    (
        {"gpu_hours_max": 0.1, "runs": [{"workload": ["llama3.1", "nemotron4"], "size": "tiny", "gpus": 1}]},
        "gpu_hours_max of 0.10: runs.0 (llama3.1 and nemotron4) 0.33; shorten it",
    ),
]


@pytest.mark.parametrize(("fields", "complaint"), REFUSALS, ids=[complaint[:40] for _, complaint in REFUSALS])
def test_refusals_are_one_sentence(planned, fields, complaint):
    with pytest.raises(UserError) as refusal:
        planned(**fields)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_that_is_wrong_with_a_sweep_is_told_at_once(write):
    bad = [{**TINY, "sise": "8b", "max_steps": 0}, {"size": "tiny", "gpus": []}]
    path = write(name="noon", gpu_hours_max=0, runs=bad, exclude=[{"repeats": 2, "size": 8}, {}])
    with pytest.raises(UserError) as refusal:
        load_sweep("night")
    assert [told.removeprefix(f"{path}, ") for told in str(refusal.value).split("\n")] == [
        "line 1, name: 'noon' differs from the file's name, 'night': change one of them.",
        "line 2, gpu_hours_max: has to be above 0, not 0.",
        "line 9, runs.0.sise: unknown field 'sise': did you mean 'size'? Valid are: "
        + ", ".join(["workload", *option_fields()])
        + ".",
        "line 10, runs.0.max_steps: has to be at least 1, not 0.",
        "line 11, runs.1: names no workload, as in workload: llama3.1.",
        "line 12, runs.1.gpus: an empty list asks for nothing: leave it out, or name a value.",
        "line 14, exclude.0.repeats: unknown field 'repeats': did you mean 'reservation'? Valid are: "
        + ", ".join(
            name
            for name in ("workload", *option_fields())
            if name not in ("repeats", "environment", "arguments")
        )
        + ".",
        "line 15, exclude.0.size: has to be text, not 8 (put it in quotes).",
        "line 16, exclude.1: an empty exclusion would exclude everything: name a field, as in size: 70b.",
    ]


def test_each_combination_that_cannot_be_run_is_named(planned):
    odd = {**TINY, "gpus": [1, 3], "max_steps": 30}
    with pytest.raises(UserError) as refusal:
        planned(runs=[{**TINY, "size": ["tyny", "tiny", "teny"]}, odd, TINY])
    first, second, third, twice = str(refusal.value).split("\n")
    assert first.startswith("sweep 'night', runs.0 (workload llama3.1, size tyny, gpus 1,2): unknown size")
    assert second.startswith("sweep 'night', runs.0 (workload llama3.1, size teny, gpus 1,2): unknown size")
    assert third.startswith("sweep 'night', runs.1 (workload llama3.1, size tiny, gpus 1,3, max_steps 30): ")
    assert twice.startswith("sweep 'night', runs.2 (workload llama3.1, size tiny, gpus 1,2): runs.0 asks for")


def test_what_is_wrong_with_several_combinations_of_an_entry_is_there_once(
    planned,
):
    with pytest.raises(UserError) as refusal:
        planned(runs=[{**TINY, "dtype": "fp99", "max_steps": [20, 30, 40]}])
    assert str(refusal.value).startswith(
        "sweep 'night', runs.0 (workload llama3.1, size tiny, dtype fp99, gpus 1,2, max_steps 20): "
    )
    assert "\n" not in str(refusal.value)


def test_a_broken_sweep_hides_no_other(write, capsys):
    path = write()
    path.with_name("broken.yaml").write_text("name: broken\ngpu_hours_max: 1\nrepeats: often\nruns: []\n")
    assert steptime("sweep", "list", "--format", "csv") == 1
    printed = capsys.readouterr()
    names = [line.partition(",")[0] for line in printed.out.splitlines()]
    assert "night" in names
    assert "broken" not in names
    assert printed.err.splitlines() == [
        f'steptime: {path.with_name("broken.yaml")}, line 3, repeats: has to be a whole number, not "often".',
        f"{path.with_name('broken.yaml')}, line 4, runs: asks for nothing: give at least one entry, as in "
        "- {workload: llama3.1}.",
    ]


def test_an_unknown_sweep_lists_the_known(write):
    write()
    with pytest.raises(
        UserError, match=r"unknown sweep 'nigth': did you mean 'night'\? Valid are: .*, night\."
    ):
        load_sweep("nigth")


def test_a_node_sweep_tries_each_node_alone_and_all_pairs_in_disjoint_rounds():
    for count in (2, 5, 8):
        nodes = [f"n{number}" for number in range(1, count + 1)]
        alone, pairs = groups_of(nodes)
        assert alone == [(node,) for node in nodes]
        assert sorted(map(sorted, pairs)) == sorted(map(list, itertools.combinations(nodes, 2)))
        for first in range(0, len(pairs), count // 2):
            together = [node for pair in pairs[first : first + count // 2] for node in pair]
            assert len(together) == len({*together})
    _, few = groups_of([f"n{number}" for number in range(1, 9)], rounds=3)
    assert {node: sum(node in pair for pair in few) for node in few[0]} == dict.fromkeys(few[0], 3)


def groups_of(nodes, **fields):
    groups = list(NodeSweep(names=",".join(nodes), gpus_per_node=8, **fields).groups())
    return groups[: len(nodes)], groups[len(nodes) :]


def test_a_node_sweep_of_too_many_pairs_is_refused_and_one_of_few_rounds_is_planned(planned, monkeypatch):
    monkeypatch.setattr(sweep_planning, "MOST_CELLS", 12)
    runs = {"cluster": "mini-slurm", "runs": [{"workload": "nccl", "size": "all_reduce"}]}
    with pytest.raises(UserError, match="has more than 12 runs"):
        planned(**runs, nodes={"names": "n[01-06]", "gpus_per_node": 2})
    made = planned(**runs, nodes={"names": "n[01-06]", "gpus_per_node": 2, "rounds": 2})
    assert [cell.gpus for cell in made.cells] == [2] * 6 + [4] * 6
    assert made.cells[6].label == "nccl·all_reduce·fp32·4·nodelist n01,n06"
    with pytest.raises(UserError, match=r"nodes\.names.*names a node twice"):
        planned(**runs, nodes={"names": "n1,n1", "gpus_per_node": 2})
    for names in ("n[1-2", "n[2-1]"):
        with pytest.raises(UserError, match=r"nodes\.names: names no nodes, as in gpu\[001-018\]"):
            planned(**runs, nodes={"names": names, "gpus_per_node": 2})
    with pytest.raises(UserError, match="`gpus_per_node` is for Slurm clusters"):
        planned(**runs | {"cluster": "local"}, nodes={"names": "n1,n2", "gpus_per_node": 2})


def test_a_gpu_count_that_is_null_is_refused(planned):
    with pytest.raises(UserError, match=r"runs\.0\.gpus\.1: has to be a GPU count, as in 8, not null"):
        planned(runs=[{"workload": "llama3.1", "gpus": [1, None]}])


def test_an_entry_may_name_another_gpu_type_than_its_sweep(write):
    entries = [LLAMA, LLAMA | {"gpu_type": "b200"}, LLAMA | {"gpu_type": ["b200", "h200"]}]
    write(gpu_type="h100", runs=entries)
    sweep = load_sweep("night")
    asked = [{request["gpu_type"] for request in sweep.requests(entry)} for entry in range(3)]
    assert asked == [{"h100"}, {"b200"}, {"b200", "h200"}]


@pytest.mark.parametrize(
    ("budget", "asked_above", "most"), [(9, None, 9), (9, 5, 5), (9, 20, 9), (9, 0.1, 9), (0.6, 0.55, 0.55)]
)
def test_confirmation_runs_take_what_nobody_has_to_be_asked_for(planned, budget, asked_above, most):
    """The sweep itself takes 0.5 GPU-hours; if somebody was asked for it, its budget is the limit."""
    plan = planned(gpu_hours_max=budget, approval_above_gpu_hours=asked_above)
    assert plan.gpu_hours_max == pytest.approx(0.5)
    assert plan.confirm_up_to_gpu_hours == most


CHANGES_FILES = """
import locale
from steptime.recipes.sweeps import add_entry, copy_file
assert locale.getencoding() != "utf-8"
copy_file("sweep", "night", "copied")
add_entry("copied", {"workload": "llama3.1", "size": "tiny", "gpus": "1", "micro_batch_size": 2})
"""


@pytest.mark.long
def test_a_file_keeps_its_letters_in_any_locale(write):
    path = write(description="kurz")
    path.write_text(path.read_text().replace("kurz", "für uns · kurz"), encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", CHANGES_FILES], env=environment, check=True, timeout=60)
    copied = load_sweep("copied")
    assert (copied.description, len(copied.runs)) == ("für uns · kurz", 2)
