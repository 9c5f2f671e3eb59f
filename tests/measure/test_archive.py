"""`steptime archive` and `steptime results import`: archives of steptime and of others come back whole."""

import hashlib
import io
import json
import os
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
import zstandard
from kept import assert_kept, masked
from logs import line_forms
from stored import publish
from typer.testing import CliRunner

from steptime import __version__
from steptime.cli import app
from steptime.clusters.base import JobState, JobStatus
from steptime.judging import comparison, judgements
from steptime.judging.series import Series
from steptime.logs.reader import read_log
from steptime.measure import archiving
from steptime.measure.metrics import measure
from steptime.recipes.planning import PlanRequest, plan
from steptime.store import judgement_queries
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

LLMB = Path(__file__).parents[1] / "data" / "llmb-archive.tar.zst"
LOG = b"step 1\n" * 1000
KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return the folder in which commands run, with its own store and state folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'first.db'}")
    return tmp_path


@pytest.fixture
def filled(here, make_result):
    """Return a store of two runs with logs, one of which is accepted, and of a rejected run without a log."""
    store = Store()
    for number in range(2):
        folder = here / "experiments" / f"run-{number}"
        folder.mkdir(parents=True)
        (folder / "log-run.out").write_bytes(LOG)
        (folder / "run.json").write_bytes(b"{ }")
        (folder / "profile.nsys-rep").write_bytes(b"x")
        (folder / "passwords.json").symlink_to("/etc/passwd")
        own = make_result("x")
        log = own.log.model_copy(update={"path": str(folder / "log-run.out")})
        numbers = {"log": log, "measurement": measure(own.run, log)}
        publish(store, make_result(f"run-{number}", submitted_at=1e9 + number, **numbers))
    bad = Verdict(checks=(Check(name="x", passed=False, message="It failed."),))
    failed = JobStatus(state=JobState.FAILED, exit_code=1)
    publish(store, make_result("bad", verdict=bad, status=failed, submitted_at=2e9))
    judgements.accept(store, "run-1", note="NeMo 2.8", accepted_by="ada")
    return store


def call(*arguments, code=0):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.output


def refusal(*arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    return str(done.exception or done.output)


def other_store(here, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{here / 'other.db'}")
    return Store()


@contextmanager
def made_archive(file):
    with archiving._new_archive(file) as made:
        made.addfile(*member("manifest.json", b"{}"))
        yield made


def member(name, content=b"x", **values):
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in values.items():
        setattr(made, key, value)
    return made, io.BytesIO(content)


@pytest.mark.long
def test_another_store_has_all_of_it(filled, here, monkeypatch):
    told = call("archive", "-o", "all.tar.zst")
    kb = (here / "all.tar.zst").stat().st_size / 1000
    assert told == f"archived: 3 runs, {kb:,.0f} kB in all.tar.zst; of 1 this machine has no log\n"
    other = other_store(here, monkeypatch)

    assert call("results", "import", "all.tar.zst") == "imported from all.tar.zst: 2 valid, 1 rejected\n"
    assert call("results", "import", "all.tar.zst") == "imported from all.tar.zst: 3 there already\n"
    content = zstandard.ZstdDecompressor().stream_reader((here / "all.tar.zst").read_bytes()).read()
    frames = [zstandard.compress(content[at : at + 5000]) for at in range(0, len(content), 5000)]
    (here / "frames.tar.zst").write_bytes(b"".join(frames))  # as pzstd packs
    assert call("results", "import", "frames.tar.zst") == "imported from frames.tar.zst: 3 there already\n"

    differ = {"origin", "log_path", "published_at", "reason", "warnings"}
    for before, after in zip(*(one.results(include_rejected=True) for one in (filled, other)), strict=True):
        assert {n: before[n] for n in before if n not in differ} == {
            n: after[n] for n in after if n not in differ
        }
        assert after["origin"] == "all.tar.zst"
        assert filled.steps(before["job_name"]) == other.steps(before["job_name"])
    assert "its state is 'failed'" in other.run("bad")["reason"], "checked again"
    folder = here / "home" / "imported" / "run-1"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "log-run.out": LOG,
        "run.json": b"{ }",
    }
    assert other.run("run-1")["log_path"] == str(folder / "log-run.out")
    call("archive", "-o", "again.tar.zst")
    logs, again = (
        {one for one in names_in(here / name) if one.startswith("logs/")}
        for name in ("all.tar.zst", "again.tar.zst")
    )
    assert logs == again
    level = judgement_queries.accepted_level(other, "run-1")
    assert level is not None
    assert (level["note"], level["accepted_by"]) == ("NeMo 2.8", "ada")


def names_in(file):
    content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(content)) as made:
        assert {(one.uid, one.gid, one.uname, one.gname) for one in made} == {(0, 0, "", "")}
        return {one.name: made.extractfile(one).read() for one in made if one.isfile()}  # type: ignore[union-attr]


@pytest.mark.parametrize("hostile", ["log", "job", "cluster"])
def test_a_path_in_an_archive_puts_no_file_of_this_machine_into_the_next(hostile, filled, here, monkeypatch):
    keys = here / "keys"
    keys.mkdir()
    for name in ("log-run.out", "id.json"):
        (keys / name).write_bytes(KEY)
    call("archive", "--state", "rejected", "-o", "all.tar.zst")
    content = names_in(here / "all.tar.zst")
    [name] = [one for one in content if one.startswith("runs/")]
    run = json.loads(content[name])
    if hostile == "log":
        run["result"]["log"]["path"] = str(keys / "log-run.out")
        run["result"]["submitted"]["job"]["log_path"] = str(keys / "log-run.out")
    elif hostile == "job":
        run["result"]["submitted"]["job"]["name"] = "../../keys"
    else:
        run["result"]["submitted"]["run"]["cluster"] = "../keys"
    with made_archive(here / "hostile.tar.zst") as made:
        made.addfile(*member(name, json.dumps(run).encode()))
    other = other_store(here, monkeypatch)

    told = call("results", "import", "hostile.tar.zst", code=0 if hostile == "log" else 1)

    assert (other.count(include_rejected=True) == 1) == (hostile == "log")
    if hostile != "log":
        assert {"job": "cannot be used", "cluster": "is not a plain name"}[hostile] in told
        return
    call("archive", "-o", "next.tar.zst")
    assert not [name for name, data in names_in(here / "next.tar.zst").items() if KEY in data]


def bomb(file, size):
    """Write an archive whose only log is `size` zeros."""
    with file.open("wb") as stream, zstandard.ZstdCompressor(level=19).stream_writer(stream) as packed:
        header = tarfile.TarInfo("logs/log-x.out")
        header.size = size
        packed.write(header.tobuf())
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))


@pytest.mark.long
def test_a_few_bytes_do_not_fill_the_disk(here):
    bomb(here / "x.tar.zst", 256 << 20)
    assert (here / "x.tar.zst").stat().st_size < 100_000
    assert "unpacks to more than" in refusal("results", "import", "x.tar.zst", "--cluster", "c")
    assert not [path for path in (here / "home").rglob("*") if path.is_file() and path.suffix == ".out"]


def test_nor_does_a_packed_log_in_it(here):
    packed = zstandard.ZstdCompressor().compress(bytes(128 << 20))
    with archiving._new_archive(here / "x.tar.zst") as made:
        made.addfile(*member("logs/log-x.out.zst", packed))
    told = call("results", "import", "x.tar.zst", "--cluster", "c", code=1)
    assert "logs/log-x.out.zst: not imported" in told
    assert "unpacks to more than" in told


def test_a_damaged_log_does_not_end_the_import_of_others(here):
    (here / "logs").mkdir()
    (here / "logs" / "log-x.out.zst").write_bytes(b"not zstd")
    (here / "logs" / "log-y.out").write_text("no step")
    told = call("results", "import", "logs", code=1)
    assert "log-x.out.zst: not imported: the log does not say where it ran" in told
    assert "log-y.out: not imported" in told


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}


@pytest.mark.parametrize(
    "planted",
    [
        member("../../planted"),
        member("/planted"),
        member("logs/log-x.out", b"1\n0\n0\n" + bytes(506), pax_headers=SPARSE),
    ],
    ids=["a path upwards", "a path from the root", "a file with holes"],
)
def test_what_is_written_stays_in_its_folder_and_size(planted, here):
    planted[1].seek(0)
    with made_archive(here / "x.tar.zst") as made:
        made.addfile(*planted)
    assert "cannot be read as an archive" in refusal("results", "import", "x.tar.zst", "--cluster", "c")
    assert not list(here.parent.rglob("planted"))
    assert not Path("/planted").exists()


def test_a_file_that_is_there_twice_is_refused(here):
    with made_archive(here / "x.tar.zst") as made:
        made.addfile(*member("logs/log-x.out", b"first"))
        made.addfile(*member("logs/log-x.out", b"second"))
    told = refusal("results", "import", "x.tar.zst", "--cluster", "c")
    assert "'x.tar.zst' cannot be unpacked: File exists" in told


def test_of_the_config_folder_only_what_is_read_is_packed(here, monkeypatch):
    folder = here / "team"
    for name in (".git/config", ".env", "id_selene", "sweeps/.weekly.yaml.swp", "sweeps/night.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("token: ghp_secret\n")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))

    archiving.write_archive(Store(), [], here / "x.tar.zst")

    with zstandard.open(here / "x.tar.zst") as stream, tarfile.open(fileobj=stream, mode="r|") as packed:
        names = [member.name for member in packed if member.name.startswith("config/")]
    assert "config/sweeps/night.yaml" in names
    assert "config/workloads/llama3.1-25.04.yaml" in names
    assert [name for name in names if (folder / name.removeprefix("config/")).exists()] == [
        "config/sweeps/night.yaml"
    ]


def test_links_are_left_out(here):
    with archiving._new_archive(here / "x.tar.zst") as made:
        made.addfile(*member("log-x.out", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"))
    assert "no training log below" in refusal("results", "import", "x.tar.zst", "--cluster", "c")


@pytest.mark.parametrize("missing", [1, 1000])
def test_one_that_is_cut_anywhere_is_refused(here, missing):
    (here / "cut.tar.zst").write_bytes(LLMB.read_bytes()[:-missing])
    told = refusal("results", "import", "cut.tar.zst", "--cluster", "c")
    assert "'cut.tar.zst' cannot be read as an archive: the compressed data ends too early" in told
    assert not Store().exists() or Store().count(include_rejected=True) == 0


AS_IMPORTED = {
    "workload": "nemotron-3-26.08",
    "size": "30b",
    "dtype": "fp8_mx",
    "gpus": "8",
    "gpu_type": "gb300",
}
"""The recipe that the runs of the archive trained."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "state", "baseline_runs"),
    [([], "suspected", 6), (["--not-judged"], "insufficient history", 0)],
)
def test_the_next_run_is_judged_by_runs_of_llmb_unless_they_are_only_shown(
    here, make_result, options, state, baseline_runs
):
    """NVIDIA's own code made the archive: recorders/make_llmb_archive.py."""
    assert call("results", "import", str(LLMB), "--cluster", "mine", *options).startswith(
        "imported from llmb-archive.tar.zst: 6 valid, 1 rejected"
    )
    store = Store()
    [run] = plan(PlanRequest(**AS_IMPORTED)).runs
    row = add_own(store, make_result, run.model_copy(update={"cluster": "mine"}), step_ms=3300)

    assert (row["series_state"], row["baseline_runs"]) == (state, baseline_runs)
    assert row["direction"] == ("slower" if baseline_runs else None)
    assert len(comparison.compare_since(store, 0).rows) == 1
    imported = store.results(search="llmb-archive")
    assert len(imported) == 6
    assert {one["image"] for one in map(made_of, imported)} == {"nvcr.io/nvidia/nemo:26.06.01"}
    assert "CUDA out of memory" in store.results(state="rejected", include_rejected=True)[0]["reason"]


def test_runs_go_out_in_the_form_of_llmb_run(here, make_result, monkeypatch):
    store = Store()
    [run] = plan(PlanRequest(**AS_IMPORTED)).runs
    add_own(store, make_result, run.model_copy(update={"cluster": "mine"}), step_ms=3300)
    publish(store, make_result("without-log"))

    assert archiving.write_llmb_archive(store, store.results(), here / "out.tar.zst") == (2, 1)

    made = names_in(here / "out.tar.zst")
    [config] = [text.decode() for name, text in made.items() if name.endswith(".yaml")]
    of_here = {r"(?<=\n  version: ).*": "VERSION", r"(?<=launch_time: ).*": "TIME"}
    assert_kept("llmb-config.yaml", masked(config, of_here))
    [log] = [name for name in made if name.endswith(".out")]
    assert yaml.safe_load(config)["steptime"]["log_sha256"] == hashlib.sha256(made[log]).hexdigest()
    assert log.split("/")[1:3] == ["pretrain_nemotron_3", "experiments"]
    other = other_store(here, monkeypatch)
    assert "1 valid" in call("results", "import", "out.tar.zst", "--cluster", "mine")
    [back], before = other.results(), store.run("own")
    same = (*AS_IMPORTED, "cluster", "step_time_mean_s", "window", "global_batch_size")
    assert {name: back[name] for name in same} == {name: before[name] for name in same}


def made_of(row):
    content = json.loads(Store().record(row["job_name"])["content"])
    return content["provenance"]["staged"]


def add_own(store, make_result, run, *, step_ms):
    """Publish a run of our own, and return how it is judged."""
    log_path = Path("own.out").absolute()
    lines = (line_forms.megatron_bridge(at, elapsed_ms=f"{step_ms + at % 3}") for at in range(1, 51))
    log_path.write_text("".join(lines))
    log = read_log(log_path, max_steps=50)
    publish(
        store,
        make_result("own", run=run, log=log, measurement=measure(run, log), submitted_at=4e9),
    )
    rows = judgement_queries.rows_with_judgements(store, Series.from_run(run).key)
    return next(row for row in rows if row["job_name"] == "own")


@pytest.mark.long
def test_a_log_that_shows_no_recipe_is_named_by_options(here, monkeypatch):
    log = here / "train.log"
    log.write_text("".join(line_forms.nemo2(step, time="2.71") for step in range(50)))
    os.utime(log, (1.7e9, 1.7e9))
    sure = ("--workload", "llama3.1", "--size", "70b", "--dtype", "bf16", "--gpus", "64")

    told = call("results", "import", "train.log", "--cluster", "mine", "--gpu-type", "h100", code=1)
    assert "train.log: not imported: the log does not show which recipe of config/workloads it ran" in told
    assert "--cluster" in call("results", "import", "train.log", code=1)
    named = here / "pretrain_nemotronh_56b_fp8_gpus128_tp8_pp1_cp1_vpNone_mbs1_gbs384.out"
    named.write_bytes(log.read_bytes())
    told = call("results", "import", named.name, "--cluster", "mine", "--gpu-type", "cpu", code=1)
    assert "the log shows a recipe that has no run on cpu: leave out --gpu-type" in told
    with made_archive(here / "logs.tar.zst") as made:
        made.addfile(*member("logs/train.log", log.read_bytes(), mtime=1.7e9))
    for name in ("train.log", "logs.tar.zst"):
        store = other_store(here / name.partition(".")[0], monkeypatch)
        call("results", "import", name, "--cluster", "mine", "--gpu-type", "h100", *sure)
        [row] = store.results(include_rejected=True)
        assert (row["workload"], row["gpus"], row["cluster"]) == ("llama3.1-25.04", 64, "mine")
        assert (row["step_time_mean_s"], row["submitted_at"], row["origin"]) == (2.71, 1.7e9, name)


@pytest.mark.long
def test_what_imported_runs_show_is_an_incident(here):
    for day in range(11):
        log = here / "logs" / f"train-{day:02}.log"
        log.parent.mkdir(exist_ok=True)
        time_s = (1 if day < 8 else 1.3) + day * 7 % 11 / 1000
        log.write_text("".join(line_forms.nemo2(step, last=49, time=f"{time_s:.4f}") for step in range(50)))
        os.utime(log, (time.time() - (10.5 - day) * 86400,) * 2)
    named = ("--workload", "llama3.1", "--size", "8b", "--dtype", "bf16", "--gpus", "16")
    where = ("--cluster", "mine", "--gpu-type", "h100")
    assert call("results", "import", "logs", *where, *named) == "imported from logs: 11 valid\n"
    [incident] = json.loads(call("incidents", "--format", "json"))["incidents"]
    assert incident["state"] == "confirmed"
    assert incident["title"].startswith("8b·bf16·16 on mine 29.9 % slower since ")
    call("results", "accept", "last", "--note", "meant")
    assert json.loads(call("incidents", "--format", "json"))["incidents"] == []


@pytest.mark.long
def test_a_run_of_a_job_that_the_store_has_is_there_already(here, make_result):
    run = plan(PlanRequest(workload="llama3.1", size="tiny", gpus="1")).runs[0]
    for job, time_s in (("1796055335-4fcbc3a4ac", "2.71"), ("1796055335-4fcbc3a4ac-2", "2.72")):
        log_path = Path(run.experiment, f"{run.experiment}_{job}", run.experiment, "log-run.out")
        copied = here / "copied" / log_path
        copied.parent.mkdir(parents=True)
        copied.write_text("".join(line_forms.nemo2(step, last=19, time=time_s) for step in range(20)))
        copied.with_name("run.json").write_text(run.model_dump_json())
    log = read_log(copied, max_steps=20).model_copy(update={"path": f"/lustre/experiments/{log_path}"})
    publish(Store(), make_result("made-here-2", run=run, log=log, measurement=measure(run, log)))

    assert call("results", "import", "copied") == "imported from copied: 1 there already, 1 rejected\n"
    assert call("results", "import", "copied") == "imported from copied: 2 there already\n"


@pytest.mark.parametrize("path", ["logs/train.log", "logs"])
def test_a_log_is_read_as_its_workload_says_that_steps_are_printed(here, monkeypatch, path):
    (here / "own/workloads").mkdir(parents=True)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(here / "own"))
    workload = (Path(__file__).parents[2] / "config/workloads/llama3.1-25.04.yaml").read_text()
    launcher = "launcher: {kind: command, command: [train], step_line: 'iter {step}: time {ms}ms'}\ndefaults:"
    workload = workload.replace("workload: llama3.1-25.04", "workload: own-26.11")
    (here / "own/workloads/own-26.11.yaml").write_text(workload.replace("defaults:", launcher, 1))
    (here / "logs").mkdir()
    lines = "".join(f"iter {step}: time {27000 + step}.5ms\n" for step in range(50))
    (here / "logs/train.log").write_text(lines)
    recipe = ("--workload", "own", "--size", "70b", "--dtype", "bf16", "--gpus", "64", "--gpu-type", "h100")

    told = call("results", "import", path, "--cluster", "mine", *recipe)
    assert "1 valid" in told

    [row] = Store().results()
    assert (row["workload"], row["window"], row["step_time_mean_s"]) == ("own-26.11", "49:49", 27.0495)


LOADED = (
    "[NeMo I 2025-04-11 14:46:18 nemo_logging:393] Global Checkpoint Load : Rank : 0 : Start time : "
    "1744407969.270s : Time spent in load_checkpoint: 9.712s\n"
)


@pytest.mark.parametrize(
    ("name", "steps", "mode", "window"),
    [
        ("pretrain_llama3.1_8b_fp8_16_nsys", range(25), "profile", "24:24"),
        ("pretrain_llama3.1_8b_fp8_16_nccltrace", range(5), "nccl_trace", "4:4"),
        ("pretrain_nemotron4_15b_fp8_64", range(50, 51), "checkpoint_load", "50:50"),
        ("pretrain_llama3.1_405b_fp8_64", range(50), "performance", "49:49"),
        ("results/24.11/bf16/340b/256", range(100), "performance", "99:99"),
    ],
)
def test_logs_of_the_documents_are_valid(here, name, steps, mode, window):
    """The steps, the names and the checkpoint's line are those of the 24.11 and 25.04 documents."""
    folder = here / "x" / name / (f"{name}_1744408121/{name}" if "/" not in name else "")
    folder.mkdir(parents=True)
    text = "".join(line_forms.nemo2(step, last=steps[-1], time=f"2.7{step % 9}") for step in steps)
    if "/" in name:
        text = "".join(line_forms.tqdm(step, total=len(steps), time=f"3.5{step % 9}") for step in steps)
    (folder / "log-x.out").write_text((LOADED if steps[0] else "") + text)

    told = call("results", "import", "x", "--cluster", "mine", "--gpu-type", "h100")

    assert "1 valid" in told, Store().results(include_rejected=True)[0]["reason"]
    [row] = Store().results(include_rejected=True)
    assert (row["mode"], row["window"]) == (mode, window)
    assert row["checkpoint_load_s"] == (9.712 if mode == "checkpoint_load" else None)
    assert row["days_per_1t_tokens"] is None or not row["proxy"]


@pytest.mark.parametrize("name", ["log-train.out.zst", "train log.out", "train"])
def test_an_imported_log_is_archived_whatever_its_name(name, here):
    text = "".join(line_forms.nemo2(step, time="2.71") for step in range(50)).encode()
    (here / name).write_bytes(zstandard.ZstdCompressor().compress(text) if name.endswith(".zst") else text)
    recipe = ("--workload", "llama3.1", "--size", "70b", "--dtype", "bf16", "--gpus", "64")
    call("results", "import", name, "--cluster", "mine", "--gpu-type", "h100", *recipe)

    assert "has no log" not in call("archive", "-o", "mine.tar.zst")

    [log] = [file for file in names_in(here / "mine.tar.zst") if file.startswith("logs/")]
    assert log == f"logs/000001/{'log.out' if ' ' in name else name}"


def test_nothing_is_overwritten(filled, here):
    (here / "mine.tar.zst").write_text("mine")
    assert "'mine.tar.zst' exists already" in refusal("archive", "-o", "mine.tar.zst")
    assert (here / "mine.tar.zst").read_text() == "mine"


def test_what_breaks_off_leaves_no_file(filled, here, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archiving, "_add", fail)
    with pytest.raises(OSError, match="No space"):
        archiving.write_archive(filled, filled.results(), here / "x.tar.zst")
    assert not (here / "x.tar.zst").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["archive", "-o", "x.zip"], "-o 'x.zip' is unusable: name a file like results.tar.zst"),
        (["archive"], "give one with -o, like results.tar.zst in an existing folder."),
        (["archive", "-o", "x.tar.zst"], "there are no results to archive, as"),
        (["results", "import", "gone.tar.zst"], "there is nothing at 'gone.tar.zst'"),
        (["results", "import", ".", "--size", "8b"], "--size names a recipe only together with --workload"),
        (["results", "import", "text.tar.zst"], "'text.tar.zst' cannot be read as an archive"),
    ],
)
def test_what_cannot_be_is_one_sentence(here, arguments, sentence):
    (here / "text.tar.zst").write_text("a text")
    assert sentence in refusal(*arguments)


@pytest.mark.parametrize("kind", ["fifo", "link to /dev/zero", "sparse"])
def test_what_is_no_log_of_sensible_size_is_refused(here, kind):
    log = here / "log.out"
    if kind == "fifo":
        os.mkfifo(log)
    elif kind == "sparse":
        with log.open("wb") as file:
            file.truncate(5 << 40)
    else:
        log.symlink_to("/dev/zero")
    told = call("results", "import", "log.out", "--cluster", "mine", code=1)
    said = "at most 2,415,919,104 of a log are imported" if kind == "sparse" else "not a regular file"
    assert said in told
    assert list(here.rglob("imported/*")) == []


def test_files_beside_a_log_are_packed_up_to_a_size(filled, here):
    folder = here / "experiments" / "run-1"
    with (folder / "endless.out").open("wb") as file:
        file.truncate(5 << 40)
    before = time.time()
    call("archive", "-o", "small.tar.zst")
    with (
        (here / "small.tar.zst").open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as packed,
        tarfile.open(fileobj=packed, mode="r|") as archive,
    ):
        first = archive.next()
        assert first is not None
        assert first.name == "manifest.json"
        manifest = archive.extractfile(first)
        assert manifest is not None
        told = json.load(manifest)
        assert "endless.out" not in {Path(member.name).name for member in archive}
    assert told["steptime"] == __version__
    assert before <= told["made_at"] <= time.time()


def test_a_damaged_archive_is_named_and_not_its_unpacked_copy(here):
    for name, files, told in (
        ("other.tar.zst", {"a.txt": b""}, "no training log below the folder 'other.tar.zst'"),
        (
            "cut.tar.zst",
            {"manifest.json": b"{}", "runs/1.json": b"["},
            "runs/1.json: not imported: the file is",
        ),
    ):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as made:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
        (here / name).write_bytes(zstandard.compress(packed.getvalue()))
        shown = CliRunner().invoke(app, ["results", "import", name])
        assert told in shown.output + str(shown.exception)
