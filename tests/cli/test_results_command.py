"""`steptime results` as people and programs call it."""

import csv
import hashlib
import json
import re
import shutil
import time
from datetime import datetime
from io import StringIO

import pytest
import stored
from called import refusal
from typer.testing import CliRunner

from steptime.cli import app, output, results
from steptime.judging.run_findings import RUN_VERDICT_COLUMNS
from steptime.recipes.models import Mode
from steptime.store.columns import CHOICES, COLUMNS, ELEMENTS
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'store' / 'steptime.db'}")


@pytest.fixture(scope="module")
def filled(make_result, tmp_path_factory):
    """Return the file of a store with two scales, a checkpoint save of three days ago, and a rejected run."""
    path = tmp_path_factory.mktemp("filled") / "steptime.db"
    now = time.time()
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected 20 steps, but found 3."),))
    store = Store(f"sqlite:///{path}")
    stored.write(store, make_result("one", gpus=1, step_times=[0.2] * 20, submitted_at=now - 60))
    stored.write(store, make_result("two", gpus=2, step_times=[0.25] * 20, submitted_at=now - 30))
    stored.write(store, make_result("saved", mode=Mode.CHECKPOINT_SAVE, submitted_at=now - 3 * DAY_S))
    stored.write(store, make_result("bad", gpus=4, verdict=bad, measurement=None, submitted_at=now))
    return path


@pytest.fixture
def filled_store(filled, tmp_path):
    """Copy the filled store to where the test's commands read it."""
    (tmp_path / "store").mkdir()
    shutil.copy(filled, tmp_path / "store" / "steptime.db")


def call(*arguments):
    return CliRunner().invoke(app, ["results", *arguments], catch_exceptions=False)


def jobs(*arguments):
    return [row["job_name"] for row in json.loads(call("--format", "json", *arguments).stdout)["results"]]


def test_a_store_that_does_not_exist_is_an_error_that_names_it(tmp_path, capsys):
    said = refusal(capsys, "results", "--format", "csv")

    assert f"no metrics store at {tmp_path / 'store' / 'steptime.db'}: " in said
    assert "STEPTIME_STORE_URL" in said
    assert not (tmp_path / "store").exists(), "looking makes nothing"


def test_an_empty_store_says_how_to_make_a_first_result():
    assert Store().count() == 0
    shown = call()

    assert shown.exit_code == 0
    assert shown.stdout == ""
    assert "no results yet" in shown.stderr
    assert "steptime run llama3.1 --wait" in shown.stderr
    assert json.loads(call("--format", "json").stdout) == {"schema_version": 1, "results": []}
    assert call("--format", "csv").stdout.startswith("job_name,label,")


@pytest.mark.usefixtures("filled_store")
def test_the_table_shows_what_runs_are_compared_by():
    shown = call("--wide").stdout

    assert "efficiency relative to 1 GPU" in shown
    for text in ("tiny·fp32·1", "tiny·fp32·2", "checkpoint save", "0.2500", "8,192", "80.0", "0.146"):
        assert text in shown
    assert "tiny·fp32·4" not in shown


@pytest.mark.usefixtures("filled_store")
def test_a_long_table_has_the_newest_runs_and_says_how_to_list_all(monkeypatch):
    monkeypatch.setattr(results, "_NEWEST", 3)
    assert "newest" not in call("--wide").stdout, "all three are there"
    monkeypatch.setattr(results, "_NEWEST", 2)
    shown = call("--wide").stdout
    assert ("tiny·fp32·1" in shown, "tiny·fp32·2" in shown, "checkpoint save" in shown) == (True, True, False)
    assert shown.endswith("These are the newest 2 of 3 runs: --limit 3 lists them all.\n")
    assert "newest" not in call("--limit", "3").stdout
    assert "newest" not in call("--gpus", "1").stdout
    assert jobs() == ["one", "two", "saved"], "a file for programs has all"


@pytest.mark.long
@pytest.mark.usefixtures("filled_store")
def test_a_narrow_terminal_hides_whole_columns_and_says_so(monkeypatch):
    everything = call("--wide").stdout
    headings = ("GPUs", "step time, s", "tokens/s/GPU", "GBS", "submitted")
    assert all(heading in everything for heading in headings), "it is as wide as it gets"
    monkeypatch.setattr(output, "terminal_width", lambda: 80)

    narrow = call().stdout

    table, _, hidden = narrow.rpartition("└")
    assert max(map(len, table.splitlines()[-8:])) <= 80
    assert "0.2500" in table
    assert "GBS" not in table
    assert "submitted" in table, "runs of one cell differ in nothing else"
    assert re.search(r"\d columns hidden: GBS, .*GPU-hours, queued; --wide shows them", hidden)
    assert "GBS" in call("--wide").stdout.partition("└")[0]


@pytest.mark.usefixtures("filled_store")
def test_rejected_runs_are_listed_on_request_with_the_reason():
    shown = call("--all", "--full-names").stdout

    assert shown.startswith("4 runs, 1 rejected · ")
    assert call().stdout.startswith("3 runs · ")
    assert "tiny·fp32·4 (bad) is rejected: Expected 20 steps, but found 3." in shown
    assert re.search("^bad  ", shown, re.MULTILINE)


@pytest.mark.usefixtures("filled_store")
def test_csv_and_json_have_every_column_to_the_last_digit():
    rows = json.loads(call("--format", "json").stdout)["results"]
    printed = list(csv.DictReader(StringIO(call("--format", "csv").stdout)))

    assert list(rows[0]) == [column.name for column in (*COLUMNS, *RUN_VERDICT_COLUMNS)] == list(printed[0])
    stored = Store().run("two")
    times = [column.name for column in COLUMNS if column.kind == "time"]
    assert {name: rows[1][name] for name in stored if name not in times} == {
        name: value for name, value in stored.items() if name not in times
    }
    assert datetime.fromisoformat(rows[1]["submitted_at"]).timestamp() == pytest.approx(
        stored["submitted_at"]
    )
    assert float(printed[1]["tokens_per_s"]) == stored["tokens_per_s"]
    assert printed[1]["reason"] == ""


@pytest.mark.usefixtures("filled_store")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workload", "llama3.1", "--dtype", "fp32", "--gpu-type", "cpu"], ["one", "two", "saved"]),
        (["--mode", "checkpoint_save"], ["saved"]),
        (["--since", "2d"], ["one", "two"]),
        (["--since", "2020-01-01", "--all"], ["one", "two", "bad", "saved"]),
        (["--since", "45m", "--limit", "1"], ["two"]),
        (["--dag", "steptime_llama3.1-25.04", "--dag-run", "manual__2026-11-21"], ["one", "two", "saved"]),
        (["--state", "rejected"], ["bad"]),
        (["--state", "Valid", "--all"], ["one", "two", "saved"]),
        (["--cluster", "LOCAL", "--scaling", "weak"], ["one", "two", "saved"]),
        (["--gpus", "2"], ["two", "saved"]),
        (["--search", "FP32·1"], ["one"]),
        (["--node", "localhost", "--version", "nemo 2.7.3", "--gpus", "2"], ["two", "saved"]),
        (["--variable", "OMP_NUM_THREADS=1", "--search", "OMP_NUM fp32·1"], ["one"]),
        (["--node", "local"], []),
    ],
)
def test_filters(arguments, expected):
    assert jobs(*arguments) == expected


def test_a_family_means_its_default_release_if_that_ran_else_the_newest(make_result):
    """The default release of llama3.1 is 25.04, and no file here has acme."""
    for workload in ("llama3.1-26.06", "llama3.1-26.08", "acme-1.0", "acme-2.0", "llama3.1-25.04"):
        plain = make_result(workload).run
        run = plain.model_copy(update={"recipe": plain.recipe.model_copy(update={"workload": workload})})
        if workload == "llama3.1-25.04":
            assert jobs("--workload", "llama3.1") == ["llama3.1-26.08"]
        stored.write(Store(), make_result(workload, run=run))
    assert jobs("--workload", "LLAMA3.1") == ["llama3.1-25.04"]
    assert jobs("--workload", "acme") == ["acme-2.0"]


def test_every_filter_of_the_page_is_a_flag():
    flags = call("--help").stdout
    for name in (*CHOICES, *ELEMENTS, "search", "since", "dag", "dag_run"):
        assert f"--{name.replace('_', '-')} " in flags


def test_the_cells_of_a_sweep_are_named_by_its_dag_run(make_result):
    for name in ("cell", "other"):
        result = make_result(name)
        told = {"dag_id": "steptime_sweep", "dag_run_id": f"week-{name}", "sweep": "weekly"}
        provenance = result.submitted.provenance.model_copy(update=told)
        stored.write(Store(), make_result(name, provenance=provenance))

    stored.write(Store(), make_result("of-no-sweep"))

    assert jobs("--dag", "steptime_sweep", "--dag-run", "week-cell") == ["cell"]
    assert jobs("--sweep", "Weekly") == ["cell", "other"]


@pytest.mark.usefixtures("filled_store")
@pytest.mark.parametrize(("named", "job"), [("tw", "two"), ("two", "two"), ("last", "bad"), ("sa", "saved")])
def test_a_run_is_named_by_its_beginning_or_as_the_last(named, job):
    assert json.loads(call("show", named, "--format", "json").stdout)["result"]["job_name"] == job
    assert json.loads(call("show", named, "--record").stdout)["job"]["name"] == job


def test_last_of_a_store_without_runs_says_what_to_do(capsys):
    Store().results()  # creates an empty store
    told = "there is no run 'last' in the metrics store: `steptime results --all"
    assert told in refusal(capsys, "results", "show", "last")


@pytest.mark.usefixtures("filled_store")
def test_nothing_found_is_said():
    shown = call("--since", "2030-01-01")

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == "No result fits these filters. --all lists rejected ones too.\n"


@pytest.mark.usefixtures("filled_store")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--size", "tyni"],
            "unknown size 'tyni' of the stored results: did you mean 'tiny'? Valid are: tiny.",
        ),
        (["--mode", "save"], "Valid are: checkpoint_save, performance."),
        (["--since", "yesterday"], "--since 'yesterday' is not a time: write 30m, 12h, 7d, 2w, or a date"),
        (["--sweep", "weekly"], "unknown sweep 'weekly' of the stored results. Valid are: none."),
        (["--limit", "0"], "has to be at least 1"),
        (
            ["--dag-run", "manual__2026-11-12"],
            "of a DAG run 'manual__2026-11-12' in the metrics store: did you mean 'manual__2026-11-21'?",
        ),
        (
            ["--dag-run", "x\ny"],
            r"'x\ny' in the metrics store: `steptime results --all --format csv` lists all",
        ),
        (["show", "tow"], "no run 'tow' in the metrics store: did you mean 'two'?"),
        (["show", ""], "'' begins the names of 4 runs (bad, one, saved, …): write more of the name."),
        (["compare", "one", "nine"], "no run 'nine' in the metrics store: `steptime results --all"),
        (
            ["--dag", "steptime_lama3.1-25.04"],
            "no results of a DAG 'steptime_lama3.1-25.04' in the metrics store: did you mean "
            "'steptime_llama3.1-25.04'?",
        ),
        (
            ["--dag", "steptime_llama3.1-25.04", "--dag-run", "manual"],
            "no results of a DAG run 'manual' in the metrics store",
        ),
        (["--gpus", "3"], "unknown gpus '3' of the stored results: did you mean '2'? Valid are: 1, 2, 4."),
    ],
)
def test_a_wrong_value_is_answered_with_the_valid_ones(arguments, sentence, capsys):
    assert sentence in refusal(capsys, "results", *arguments)


@pytest.mark.usefixtures("filled_store")
def test_show_tells_what_is_needed_to_repeat_a_run():
    shown = call("show", "two").stdout

    for text in (
        "675de01b",
        "tensor 1, pipeline 1, context 1, data 2",
        "torch 2.13.0",
        "b" * 64,
        "10:19",
        "0.25 s",
    ):
        assert text in shown
    assert "✓ It did." in shown
    assert "torchrun -m trainer --run run.json" in shown
    assert "The repetition would differ: commit 675de01b" in shown
    bad = call("show", "bad").stdout
    assert "✗ Expected 20 steps, but found 3." in bad
    assert re.search(r"failed +Expected 20 steps, but found 3", bad)
    assert "failed" not in shown


def test_show_has_the_lines_of_the_log_around_the_cause(make_result):
    result = make_result("lost")
    log = result.log.model_copy(update={"excerpt": "before it\nCUDA out of memory"})
    stored.write(Store(), result.model_copy(update={"log": log}))
    assert "# ---- log excerpt ----\nbefore it\nCUDA out of memory\n" in call("show", "lost").stdout


def test_show_tells_how_ranks_were_started_and_what_the_nodes_told(make_result):
    node = {"node": "n1", "faults": [], "matmul_tflops": 650.25}
    bad = {"node": "n2", "faults": ["it burns", "it smells"], "matmul_tflops": None}
    together = {"bus_gb_per_s": 360.5}
    told = {
        "well": {"nodes": [node, {**node, "node": "n2"}], "all_reduce": together},
        "refused": {"nodes": [{**node, "matmul_tflops": None}, bad], "all_reduce": None},
    }
    for name, found in told.items():
        result = make_result(name)
        record = json.loads(result.record)
        record |= {"node_check": found, "launch": {"numa_bound_ranks": 2, "vboost": True}}
        stored.write(Store(), result.model_copy(update={"record": json.dumps(record)}))
    well, refused = (call("show", name, "--format", "csv").stdout for name in told)
    assert '"n1 650.2 TFLOPS, n2 650.2 TFLOPS, all-reduce 360.5 GB/s"' in well
    assert '"n1 no fault, n2 it burns; it smells"' in refused
    assert {"ranks bound to a NUMA node,2", "vboost,set"} < set(well.splitlines())


@pytest.mark.usefixtures("filled_store")
def test_show_as_json_is_whole():
    whole = json.loads(call("show", "saved", "--format", "json").stdout)

    assert whole["result"]["checkpoint_save_s"] == 0.946
    assert whole["result"]["checkpoint_blocked_s"] == 0.146
    assert whole["checkpoints"][0]["iteration"] == 19
    assert len(whole["steps"]) == 20
    assert whole["checks"][0]["passed"] is True
    assert whole["measurement"]["checkpoint_save_s"] == 0.946
    assert whole["record"]["run"]["mode"] == "checkpoint_save"


@pytest.mark.usefixtures("filled_store")
def test_show_prints_the_record_as_it_is_stored():
    printed = call("show", "two", "--record").stdout

    sha256 = hashlib.sha256(printed.encode()).hexdigest()
    assert json.loads(printed)["job"]["name"] == "two"
    shown = call("show", "two").stdout
    assert sha256 in shown


def test_two_sets_of_runs_are_compared(make_result):
    for gpus in (1, 2, 4, 8, 16, 32):
        for number in range(3):
            for algorithm, level in (("Tree", 1.0), ("Ring", 1.1)):
                name = f"{algorithm}-{gpus}-{number}"
                times = [gpus * level * (1 + number / 1000)] * 20
                environment = {"NCCL_ALGO": algorithm}
                stored.write(Store(), make_result(name, gpus=gpus, step_times=times, environment=environment))
    stored.write(Store(), make_result("only", gpus=64, environment={"NCCL_ALGO": "Ring"}))

    sets = ("compare", "--a", "NCCL_ALGO=Tree", "--b", "NCCL_ALGO=Ring")
    shown = call(*sets).stdout
    assert "B is slower than A: median of 6 cells in both sets +10.0 % (+10.0 to +10.0 %)." in shown
    assert "only in B: tiny·fp32·64" in shown
    assert "NCCL_ALGO: Tree → Ring (6 of 6 cells)" in shown
    answer = json.loads(call(*sets, "--gpus", "4", "--format", "json").stdout)
    assert answer["differing"] == [{"name": "NCCL_ALGO", "a": "Tree", "b": "Ring", "cells": 1}]
    [cell] = answer["cells"]
    assert cell["difference_percent"] == pytest.approx(10)
    assert cell["from_percent"] < 10 < cell["to_percent"]
    assert (cell["a_runs"], cell["b_median"]) == (3, pytest.approx(4.4044))
    assert len(list(csv.DictReader(StringIO(call(*sets, "--format", "csv").stdout)))) == 6


@pytest.mark.usefixtures("filled_store")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--a", "gpus=1"], "a set of runs needs a condition: write NAME=VALUE, as image=nemo:26.02."),
        (["--by", "speed", "--a", "gpus=1", "--b", "gpus=2"], "unknown --by 'speed'"),
        (["--a", "gpus=1", "--since", "7d"], "--since and --a, --b or --by exclude each other"),
        (["one", "two", "--b", "gpus=1"], "RUN RUN and --a, --b or --by exclude each other"),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(arguments, complaint):
    refused = CliRunner().invoke(app, ["results", "compare", *arguments])
    assert refused.exit_code == 1
    assert complaint in str(refused.exception) + refused.output
