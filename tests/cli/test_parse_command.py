"""`steptime parse` as people and programs call it."""

import asyncio
import csv
import gzip
import json
import statistics
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from logs import line_forms
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.base import Job
from steptime.clusters.collecting import collect_log
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.logs.reader import read_log
from steptime.measure.log_rows import COLUMNS, log_row
from steptime.measure.metrics import measure
from steptime.recipes.models import Mode, Window
from steptime.recipes.planning import parse_request, plan

DATA = Path(__file__).parents[1] / "data" / "logs"


@pytest.fixture
def logs(tmp_path):
    """Return a folder of complete, short, crashed, empty and resumed runs, and of one without steps."""
    contents = {
        "log-acct.complete_7_0.out": line_forms.nemo2_log(),
        "log-acct.short_8_0.out": line_forms.nemo2_log(range(48)),
        "log-acct.crashed_9_0.out": line_forms.nemo2_log(range(5)) + b"RuntimeError: CUDA out of memory.\n",
        "log-acct.gap_10_0.out": line_forms.nemo2_log(step for step in range(50) if step not in (40, 44)),
        "log-acct.nan_11_0.out": line_forms.nemo2_log()
        + line_forms.nemo2(49, loss="nan", prefix="1: ").encode(),
        "log-acct.requeued_12_0.out": line_forms.nemo2_log(range(20)),
        "log-acct.requeued_12_1.out": line_forms.nemo2_log(range(20, 50)),
        "log-empty.out": b"",
        "log_titan.out": "".join(map(line_forms.torchtitan, range(1, 11))).encode(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def _run(*arguments):
    outcome = CliRunner().invoke(app, ["parse", *map(str, arguments)], catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.stdout


def _rows(*arguments):
    return json.loads(_run(*arguments, "--format", "json"))["logs"]


def test_one_row_a_run_with_its_state(logs):
    assert _run(logs, "--window", "35:44").startswith(
        "8 runs: 2 complete, 2 incomplete, 3 failed, 1 unknown.\n"
    )
    rows = _rows(logs, "--window", "35:44")
    states = {Path(row["log_path"]).name: row["state"] for row in rows}
    assert states == {
        "log-acct.complete_7_0.out": "complete",
        "log-acct.short_8_0.out": "incomplete",
        "log-acct.crashed_9_0.out": "failed",
        "log-acct.gap_10_0.out": "incomplete",
        "log-acct.nan_11_0.out": "failed",
        "log-acct.requeued_12_1.out": "complete",
        "log-empty.out": "failed",
        "log_titan.out": "unknown",
    }
    assert all(bool(row["reason"]) == (row["state"] != "complete") for row in rows)


def test_a_planned_run_reads_as_the_store_has_it(tmp_path, make_result):
    """The window and steps come from the run.json beside the log; every number agrees to the last digit."""
    run = make_result(max_steps=20).run
    log = tmp_path / f"log-{run.experiment}.out"
    start = b'steptime.start {"device": "cpu"}\n'
    end = b'steptime.result {"state": "completed"}\n'
    log.write_bytes(start + line_forms.nemo2_log(range(20)) + end)
    (tmp_path / "run.json").write_text(run.model_dump_json())
    (row,) = _rows(tmp_path)
    assert (row["state"], row["window"], row["window_from"]) == ("complete", str(run.window), "run.json")
    expected = measure(run, read_log(log, max_steps=20)).model_dump(mode="json", exclude={"window"})
    assert {name: row[name] for name in expected if name in row} == {
        name: value for name, value in expected.items() if name in row
    }
    assert row["mfu_percent"] is None  # on the CPU
    (other,) = _rows(tmp_path, "--window", "5:9")
    moved = run.model_copy(update={"window": Window(first=5, last=9)})
    assert other["tokens_per_s"] == measure(moved, read_log(log)).tokens_per_s


def test_a_collected_copy_is_named_as_the_log_on_its_cluster(tmp_path, make_result, monkeypatch):
    run, there, home = make_result(max_steps=20).run, tmp_path / "there", tmp_path / "home"
    there.mkdir()
    log = there / f"log-{run.experiment}.out"
    log.write_bytes(line_forms.nemo2_log(range(20)))
    (there / "run.json").write_text(run.model_dump_json())
    job = Job(
        cluster="local", name="one", job_id="1", directory=str(there), log_path=str(log), submitted_at=1.0
    )
    monkeypatch.setenv("STEPTIME_HOME", str(home))
    monkeypatch.setattr(LocalCluster, "local_path", lambda self, path: None)
    config = LocalConfig(name="local", kind="local", gpu_type="cpu", work_dir=str(tmp_path))
    asyncio.run(collect_log(LocalCluster(config), job))

    assert _rows(home) == _rows(there)
    assert str(home) not in _run(home, "--full-names")


def test_a_run_json_of_something_else_is_remarked(logs):
    (logs / "run.json").write_text("{}")
    (row,) = _rows(logs / "log-acct.complete_7_0.out")
    assert row["state"] == "complete"
    assert "cannot be read by this version of steptime" in row["warnings"]


def test_csv_and_json_have_the_same_columns_whatever_the_logs_hold(logs):
    for log in sorted(logs.glob("log*")):
        header, *rows = csv.reader(StringIO(_run(log, "--format", "csv")))
        assert header == [column.name for column in COLUMNS]
        assert [len(row) for row in rows] == [len(COLUMNS)]
        assert [list(row) for row in _rows(log)] == [[column.name for column in COLUMNS]]


def test_names_are_short_in_the_table_unless_asked(logs):
    short = _run(logs)
    assert "complete_7_0" in short
    assert str(logs) not in short
    heading = short.splitlines()[1]
    assert [name for name in ("GBS", "step time, s", "peak memory, GiB", "MFU, %") if name in heading] == [
        *("GBS", "step time, s", "peak memory, GiB")
    ], "what one log has at least"
    assert "short_8_0: incomplete: training ended at step 47 of 49: 2 steps are missing at the end" in short
    full = _run(logs / "log-empty.out", "--full-names")
    assert "log-empty.out" in full.replace("\n", "")


def test_real_logs_have_their_checkpoint_times():
    load, save = (_rows(DATA / f"log-nemo2_cpu_{kind}.out")[0] for kind in ("load", "save"))
    assert load["checkpoint_load_s"] == 0.208
    # A whole number of seconds: it comes from the dates before NeMo's lines.
    assert (save["checkpoint_save_s"], save["checkpoint_blocked_s"]) == (10.0, 0.17)


def test_other_kinds_stand_in_tables_of_their_own(tmp_path):
    traced = line_forms.nccl_trace(1) + line_forms.nemo2_log()
    for name, content in {"plain": line_forms.nemo2_log(), "traced": traced, "empty": b""}.items():
        (tmp_path / f"log-{name}.out").write_bytes(content)
    first, title, second = _run(tmp_path).partition("nccl trace: not for comparison with performance runs")
    assert title
    assert ("plain" in first, "empty" in first, "traced" in first) == (True, True, False)
    assert "traced" in second
    modes = {Path(row["log_path"]).stem: row["mode"] for row in _rows(tmp_path)}
    assert modes == {"log-plain": "performance", "log-traced": "nccl_trace", "log-empty": None}
    assert "not for comparison" not in _run(tmp_path / "log-plain.out")


def test_what_is_no_performance_run_is_not_compared_with_the_published_time(tmp_path):
    (planned,) = plan(parse_request({"workload": "llama3.1", "size": "70b", "gpus": "64"})).runs
    log, plan_file = tmp_path / f"log-{planned.experiment}.out", tmp_path / "run.json"
    end = b'steptime.result {"state": "completed"}\n'
    log.write_bytes(line_forms.nccl_trace(1) + line_forms.nemo2_log() + end)
    compared = {}
    for mode in (Mode.PERFORMANCE, Mode.PROFILE, Mode.NCCL_TRACE):
        plan_file.write_text(planned.model_copy(update={"mode": mode}).model_dump_json())
        (row,) = _rows(log)
        assert row["mode"] == mode
        compared[mode] = (row["step_time_over_published"] is not None, row["warnings"])
    assert compared == {
        "performance": (True, "planned as performance, and the log is that of nccl_trace"),
        "profile": (False, "planned as profile, and the log is that of nccl_trace"),
        "nccl_trace": (False, None),
    }


OLD_RESULTS = "results/24.11/bf16/340b/256/log-nemo_nemotron4_340b_256_1234.out"
NAMED = "pretrain_nemotronh_56b_fp8_gpus128_tp8_pp1_cp1_vpNone_mbs1_gbs{gbs}"


def _upstream_log(folder, name, *, gbs=256, tail=""):
    """Write a log where NeMo-Run leaves it: experiments/NAME/NAME_TIME/NAME/log-ACCOUNT.NAME_JOB_0.out."""
    log = folder / "experiments" / name / f"{name}_1766132151" / name / f"log-acct.{name}_3358926_0.out"
    log.parent.mkdir(parents=True)
    lines = (line_forms.nemo2(step, time=f"15.{step:02}", tail=tail) for step in range(50))
    log.write_text("".join(lines).replace("global_batch_size: 256", f"global_batch_size: {gbs}"))
    return log


def _config(log, release, **model):
    content = {
        "model_info": {"dtype": "fp8", "scale": 128, "gpu_type": "h100", **model},
        "workload_info": {"gsw_version": release},
        "job_config": {"strong_scaling": False, "proxy": False, "profile_enabled": False},
    }
    log.parents[1].joinpath("llmb-config_3358926.yaml").write_text(json.dumps(content))


def test_results_of_24_11_are_read_with_their_recipe(tmp_path):
    log = tmp_path / OLD_RESULTS
    log.parent.mkdir(parents=True)
    log.write_text("".join(line_forms.tqdm(step, total=50, time="3.590") for step in range(50)))
    log.with_suffix(".err").write_text("warnings\n")
    (row,) = _rows(tmp_path / "results")
    assert (row["workload"], row["gpus"], row["dtype"]) == ("nemotron4-340b-24.11", 256, "bf16")
    assert (row["window"], row["window_from"]) == ("49:49", "last step")
    assert row["tokens_per_s"] == pytest.approx(4096 * 256 / 3.59)


@pytest.mark.parametrize(("gbs", "published"), [(384, 15.496), (768, None)])
def test_an_experiments_name_gives_the_window_and_the_recipe(tmp_path, monkeypatch, gbs, published):
    """The 25.05 document itself shows a run with another batch size than its table."""
    name, tail = NAMED.format(gbs=gbs), " | TFLOPS_per_GPU: 5.3e+02"
    log = _upstream_log(tmp_path, name, gbs=gbs, tail=tail)
    log.write_text(log.read_text().replace(tail, "", 1))
    log.parents[2].rename(log.parents[3] / name.replace("gpus128", "gpus64"))  # the nearest name counts
    monkeypatch.chdir(tmp_path)
    (row,) = _rows()
    times = [float(f"15.{step}") for step in range(11, 45)]
    assert (row["window"], row["window_from"], row["state"]) == ("11:44", "experiment name", "complete")
    assert row["step_time_mean_s"] == statistics.fmean(times)
    assert row["tokens_per_s"] == pytest.approx(8192 * gbs / row["step_time_mean_s"])
    assert row["mfu_percent"] == pytest.approx(100 * gbs * 2.816e15 / row["step_time_mean_s"] / 128 / 1979e12)
    assert row["published_step_time_s"] == published
    assert (row["tflops_per_gpu_logged"], row["tflops_per_gpu_logged_std"]) == (530.0, 0.0)
    assert "TFLOPS per GPU as logged are invalid for this model" in row["warnings"]


def test_llmb_config_gives_the_window_and_the_recipe(tmp_path):
    log = _upstream_log(tmp_path, "some-name", gbs=384)
    assert _rows(log)[0]["window_from"] == "last step"
    _config(log, "25.05.03", model_name="nemotronh", model_size="56b")
    (row,) = _rows(log)
    assert (row["window"], row["window_from"]) == ("11:44", "llmb-config")
    assert (row["workload"], row["gpu_type"], row["published_step_time_s"]) == (
        "nemotron-h-25.05",
        "h100",
        15.496,
    )
    assert _rows(log, "--window", "0:9")[0]["window"] == "0:9"


@pytest.mark.parametrize(
    ("release", "window"), [("25.04", "49:49"), ("25.07", "11:44"), ("25.08", "35:44"), ("26.02.01", "35:44")]
)
def test_a_release_gives_its_window_though_its_recipe_is_not_known(tmp_path, release, window):
    log = _upstream_log(tmp_path, "some-name")
    _config(log, release, model_name="unheard-of", model_size="9b")
    (row,) = _rows(log)
    assert (row["window"], row["workload"], row["tokens_per_s"]) == (window, None, None)


def test_a_name_that_several_types_of_gpu_have_gives_no_mfu(tmp_path):
    log = _upstream_log(tmp_path, "pretrain_nemotron4_340b_fp8_gpus128_tp8_pp4_cp1_vp12_mbs1_gbs512", gbs=512)
    (row,) = _rows(log)
    assert (row["workload"], row["window"], row["gpu_type"]) == ("nemotron4-340b-25.12", "35:44", None)
    assert row["scaling"] == "strong", "as its batch shows"
    assert row["tokens_per_s"] == pytest.approx(4096 * 512 / row["step_time_mean_s"])
    assert (row["mfu_percent"], row["published_step_time_s"]) == (None, None)
    assert "does not show whether it ran on b200 or gb200" in row["warnings"]
    _config(log, "25.12", model_name="nemotron4", model_size="340b", gpu_type="gb200")
    assert _rows(log)[0]["mfu_percent"] is not None


def test_a_name_of_no_known_recipe_asks_for_the_window(tmp_path):
    log = _upstream_log(tmp_path, "pretrain_llama31_405b_bf16_gpus256_tp4_pp8_cp2_vp8_mbs1_gbs128")
    (row,) = _rows(log)
    assert (row["workload"], row["window"]) == (None, "49:49")
    assert "give --window" in row["warnings"]


def test_a_profile_is_told_by_its_configuration_or_its_name(tmp_path):
    log = _upstream_log(tmp_path, "pretrain_llama3.1_8b_bf16_8_nsys")
    assert _rows(log)[0]["mode"] == "profile"


@pytest.mark.parametrize(("gpus", "gbs"), [(32, 64), (64, 64), (128, 128)])
def test_the_405b_proxies_have_the_documents_name(tmp_path, gpus, gbs):
    log = _upstream_log(tmp_path, f"pretrain_llama3.1_405b_bf16_{gpus}", gbs=gbs)
    (row,) = _rows(log)
    assert (row["workload"], row["size"], row["gpus"]) == ("llama3.1-25.04", "405b-proxy", gpus)
    assert row["published_step_time_s"] is not None
    assert row["mfu_percent"] is not None
    assert row["days_per_1t_tokens"] is None


@pytest.mark.parametrize(
    ("name", "workload", "window"),
    [
        ("pretraining_nemotronh_56b_fp8_256", "nemotron-h-25.05", "11:44"),
        ("pretraining_nemotronh_56b_fp8_256_x", "nemotron-h-25.05", "11:44"),
        (NAMED.format(gbs=384).replace("pretrain_", "pretraining_"), "nemotron-h-25.05", "11:44"),
    ],
)
def test_names_that_documents_use_in_prose(tmp_path, name, workload, window):
    log = _upstream_log(tmp_path, name)
    (row,) = _rows(log)
    assert (row["workload"], row["window"]) == (workload, window)


@pytest.mark.parametrize("name", ["log.out", "slurm-77.out"])
def test_a_folder_of_24_11_shows_the_recipe_whatever_its_log_is_called(tmp_path, name):
    log = tmp_path / "results/24.11.1/fp8/340b/128" / name
    log.parent.mkdir(parents=True)
    log.write_text("".join(line_forms.tqdm(step, total=50, time="3.590") for step in range(50)))
    (row,) = _rows(log)
    assert (row["workload"], row["gpus"], row["dtype"]) == ("nemotron4-340b-24.11", 128, "fp8")


def test_a_short_trace_is_measured_at_its_last_step(tmp_path):
    log = _upstream_log(tmp_path, f"{NAMED.format(gbs=384)}_nccltrace", gbs=384)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:5]).replace("/49", "/4"))
    (row,) = _rows(log)
    assert (row["mode"], row["window"], row["window_from"]) == ("nccl_trace", "4:4", "last step")
    assert row["state"] == "complete"


def test_a_broken_configuration_is_none(tmp_path):
    log = _upstream_log(tmp_path, "some-name")
    for content in (
        "[",
        "- 1",
        "model_info: 7",
        "model_info: {scale: many}\nworkload_info: {gsw_version: x}",
    ):
        log.parents[1].joinpath("llmb-config_3358926.yaml").write_text(content)
        assert _rows(log)[0]["window_from"] == "last step"


@pytest.mark.parametrize("name", ["stdout.txt", "train.log", "slurm-17.out", "x/y/stdout.txt.gz"])
def test_a_folder_with_one_plausible_log(tmp_path, name):
    log = tmp_path / name
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(gzip.compress(line_forms.nemo2_log()) if name.endswith(".gz") else line_forms.nemo2_log())
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "notes.log").write_text("Training epoch \n")
    (row,) = _rows(tmp_path)
    assert (Path(row["log_path"]).name, row["state"]) == (log.name, "complete")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (line_forms.nemo2_log(), line_forms.nemo2_log()),
        (line_forms.nemo2_log(), b"loading\n"),
        (
            line_forms.nemo2_log(range(9), prefix="0: "),
            b"8: loading\n9: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        ),
        (
            b"".join(b"[NeMo I 2026-05-12 10:0%d:00 x:1] loading\n" % at for at in range(9)),
            b"".join(b"[NeMo I 2026-05-12 10:0%d:01 x:1] loading\n" % at for at in range(9)),
        ),
    ],
)
def test_logs_of_several_nodes_are_one_run_and_no_requeue(tmp_path, first, second):
    """In Slurm's file names `%n` numbers nodes in the same way as a log's restarts are numbered."""
    for node, content in enumerate((first, second)):
        (tmp_path / f"log-x_123_{node}.out").write_bytes(content)
    alone = log_row([tmp_path / "log-x_123_0.out"])
    (row,) = _rows(tmp_path)
    assert [row[name] for name in ("steps", "step_time_mean_s")] == [
        alone[name] for name in ("steps", "step_time_mean_s")
    ]
    assert row["log_bytes"] == len(first) + len(second)
    assert "of log-x_123_1.out, other output of the run, only failures are read" in row["warnings"]
    assert ("out of memory" in (row["reason"] or "")) == (b"out of memory" in second)
    assert "earlier attempt" not in row["warnings"]


def test_the_log_with_steps_is_that_of_the_run_whichever_node_wrote_it(tmp_path):
    (tmp_path / "log-x_123_0.out").write_bytes(
        b"8: loading\n9: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    (tmp_path / "log-x_123_1.out").write_bytes(line_forms.nemo2_log(range(9), prefix="0: "))
    (row,) = _rows(tmp_path)
    assert (row["steps"], row["state"]) == (9, "failed")
    assert Path(row["log_path"]).name == "log-x_123_1.out"
    assert "out of memory" in row["reason"]


def test_a_requeued_job_is_one_run_though_its_log_begins_with_an_older_date(tmp_path):
    built = b"image built 2025-01-01 00:00:00\n"
    for attempt, steps in enumerate((range(20), range(20, 50))):
        date = b"[NeMo I 2026-05-1%d 10:00:00 x:1] loading\n" % attempt
        log = built + date * 3 + line_forms.nemo2_log(steps, prefix="0: ") + date
        (tmp_path / f"log-x_123_{attempt}.out").write_bytes(log)
    (row,) = _rows(tmp_path)
    assert (row["steps"], row["state"]) == (50, "complete")


@pytest.mark.long
def test_large_logs_are_read_by_several_processes_in_their_order(tmp_path):
    noise = b"".join(map(line_forms.nccl_trace, range(20_000)))
    for number, steps in enumerate((50, 48, 50)):
        (tmp_path / f"log-{number}.out").write_bytes(noise + line_forms.nemo2_log(range(steps)))
    program = (
        "import os, resource; os.sched_getaffinity = lambda _: {0, 1}; from steptime.cli import main\n"
        "try: main()\n"
        "finally: assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "parse", str(tmp_path), "--format", "json"],
        capture_output=True,
        check=True,
        text=True,
    )
    read = json.loads(done.stdout)["logs"]
    assert read == [_rows(tmp_path / f"log-{number}.out")[0] for number in range(3)]
    assert [row["steps"] for row in read] == [50, 48, 50]
