"""`steptime archive`: what goes into a file comes back whole, and nothing is overwritten."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steptime.cli import app, main
from steptime.judging.judgements import accept, publish, reject
from steptime.results import archive
from steptime.results.models import Check, Result, Verdict
from steptime.results.store import Store

MakeResult = Callable[..., Result]
LOG = b"step 1\n" * 1000
BESIDE = {"record.json": b"{}", "run.json": b"{ }", "steps.jsonl": b"[]", "job.sh": b"true\n"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run, with a store of eight runs, a level that is accepted, and a rejected run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'first.db'}")
    return tmp_path


@pytest.fixture
def filled(here: Path, make_result: MakeResult) -> Store:
    for number in range(8):
        folder = here / "experiments" / f"run-{number}"
        log = make_result("x").log.model_copy(update={"path": str(folder / "log-run.out")})
        publish(Store(), make_result(f"run-{number}", submitted_at=1e9 + number, log=log))
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected 20 steps, but found 3."),))
    reject(Store(), make_result("bad", verdict=bad, submitted_at=2e9))
    accept(Store(), "run-7", note="NeMo 2.8", accepted_by="ada")
    folder = here / "experiments" / "run-3"
    for name, content in {"log-run.out": LOG, **BESIDE, "profile.nsys-rep": b"x", "core": b"x"}.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "code" / "checkpoints").mkdir(parents=True)
    (folder / "code" / "checkpoints" / "weights.json").write_bytes(b"x" * 100_000)
    (folder / "passwords.json").symlink_to("/etc/passwd")
    collected = here / "home" / "logs-collected" / "local" / "run-4"
    collected.mkdir(parents=True)
    (collected / "log-run.out").write_bytes(b"a copy")
    return Store()


def call(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["archive", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["steptime", "archive", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, printed.err.count("\n")) == (1, "", 1)
    return printed.err


def everything(store: Store) -> list[dict[str, Any]]:
    rows = store.results(include_rejected=True)
    return [archive._tables(store, row["job_name"]) for row in rows]


def test_another_store_has_all_of_it(filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = call("-o", "all.tar.xz")
    other = Store(f"sqlite:///{here / 'other.db'}")
    monkeypatch.setenv("STEPTIME_STORE_URL", other.url)

    back = call("restore", "all.tar.xz")

    assert told.startswith("archived: 9 runs, ")
    assert told.endswith(" kB in all.tar.xz; of 7 this machine has no log\n")
    folder = here / "home" / "restored" / "all"
    assert back == f"restored: 9 runs; logs and config are in {folder}\n"
    assert everything(other) == everything(filled)
    whole = everything(other)[1]
    assert {name: bool(rows) for name, rows in whole.items()} == {
        "runs": True,
        "accepted_levels": True,
        "checkpoints": False,
        "judgements": True,
        "readings": True,
        "records": True,
        "steps": True,
        "validations": True,
    }
    logs = {path.parent.name: path.read_bytes() for path in (folder / "logs").rglob("log-run.out")}
    assert sorted(logs.values()) == sorted([LOG, b"a copy"])
    (of_run_3,) = (folder / "logs" / name for name, content in logs.items() if content == LOG)
    assert {path.name: path.read_bytes() for path in of_run_3.iterdir()} == {"log-run.out": LOG, **BESIDE}
    assert (folder / "config" / "workloads" / "llama3.1-25.04.yaml").is_file()


def test_it_goes_through_either_kind_of_database(
    filled: Store, here: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = everything(filled)
    for place, url in enumerate((store_url, f"sqlite:///{here / 'third.db'}")):
        call("-o", f"{place}.tar.xz")
        monkeypatch.setenv("STEPTIME_STORE_URL", url)
        call("restore", f"{place}.tar.xz")
        assert everything(Store()) == first


def test_a_part_of_a_store(filled: Store) -> None:
    assert call("--state", "rejected", "-o", "bad.tar.xz").startswith("archived: 1 run, ")


def test_runs_that_are_there_stay_and_are_told(
    filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch, make_result: MakeResult
) -> None:
    call("-o", "all.tar.xz")
    other = Store(f"sqlite:///{here / 'other.db'}")
    monkeypatch.setenv("STEPTIME_STORE_URL", other.url)
    publish(other, make_result("run-5", step_times=[9.0] * 20))
    kept = other.run("run-5")

    back = call("restore", "all.tar.xz", "--into", "first").splitlines()
    again = call("restore", "all.tar.xz", "--into", "second").splitlines()

    assert back == [
        "restored: 8 runs; logs and config are in first",
        "in the store already, and left as it was: 1 run",
        "the archive has otherwise: run-5",
        "the store had other runs before: 'steptime results judge --all' judges all together",
    ]
    assert again[:2] == [
        "restored: 0 runs; logs and config are in second",
        "in the store already, and left as it was: 9 runs",
    ]
    assert other.run("run-5") == kept
    assert other.count(include_rejected=True) == 9


def test_nothing_is_overwritten(
    filled: Store, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.tar.xz").write_text("mine")
    assert "'mine.tar.xz' is there already" in refusal(capsys, monkeypatch, "-o", "mine.tar.xz")
    assert (here / "mine.tar.xz").read_text() == "mine"
    call("-o", "all.tar.xz")
    (here / "mine").mkdir()
    sentence = refusal(capsys, monkeypatch, "restore", "all.tar.xz", "--into", "mine")
    assert "'mine' is there already: name another with --into, or remove it." in sentence
    assert list((here / "mine").iterdir()) == []


def test_what_breaks_off_leaves_no_file(filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_add_json", fail)
    with pytest.raises(OSError, match="No space"):
        archive.write_archive(filled, filled.results(), here / "x.tar.xz")
    assert not (here / "x.tar.xz").exists()


def member(name: str, content: bytes = b"x", **values: Any) -> tuple[tarfile.TarInfo, io.BytesIO]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in values.items():
        setattr(made, key, value)
    return made, io.BytesIO(content)


MANIFEST = {"archive": 1, "revision": "0010", "steptime": "0.1.0", "made_at": 1.0}
HOSTILE = {
    "a path upwards": (member("../../planted"), "cannot be read as an archive"),
    "an absolute path": (member("/planted"), None),
    "a link": (member("logs/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "'logs/x' in it is no file"),
    "a hard link": (member("logs/x", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "in it is no file"),
    "a device": (member("logs/x", type=tarfile.CHRTYPE), "'logs/x' in it is no file"),
    "no manifest": (None, "is no archive of steptime: it has no manifest.json"),
    "a newer steptime": (
        member("manifest.json", json.dumps({**MANIFEST, "revision": "9999"}).encode()),
        "newer",
    ),
    "a run without rows": (member("runs/000001.json", b'{"runs": []}'), "has a run that cannot be read"),
    "a run that is no JSON": (member("runs/000001.json", b"{"), "has a run that cannot be read"),
    "a run of nothing": (member("runs/000001.json", b"[]"), "has a run that cannot be read"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_archive_of_ours_holds_is_refused_whole(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, sentence = HOSTILE[kind]
    with tarfile.open(here / "x.tar.xz", "w:xz") as made:
        if planted is not None:
            made.addfile(*member("manifest.json", json.dumps(MANIFEST).encode()))
            planted[1].seek(0)
            made.addfile(*planted)
    if sentence is None:  # the filter takes the path as one within the folder
        call("restore", "x.tar.xz", "--into", "back")
        assert (here / "back" / "planted").read_bytes() == b"x"
    else:
        assert sentence in refusal(capsys, monkeypatch, "restore", "x.tar.xz", "--into", "back")
        assert not [path for path in here.iterdir() if "back" in path.name], "no file is left"
        assert not Store().exists() or Store().count(include_rejected=True) == 0
    assert not Path("/planted").exists()
    assert not (here.parent / "planted").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "x.zip"], "name the file with -o, as results.tar.xz in a folder that is there, not 'x.zip'."),
        (["-o", "gone/x.tar.xz"], "in a folder that is there, not 'gone/x.tar.xz'."),
        ([], "name the file with -o, as results.tar.xz in a folder that is there."),
        (["--cluster", "gone", "-o", "x.tar.xz"], "unknown cluster of stored results 'gone'"),
        (["restore", "gone.tar.xz"], "there is no file 'gone.tar.xz'"),
        (["restore", "text.tar.xz"], "'text.tar.xz' cannot be read as an archive"),
        (["restore", "cut.tar.xz"], "'cut.tar.xz' cannot be read as an archive"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    filled: Store,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Path.cwd()
    (here / "text.tar.xz").write_text("a text")
    call("-o", "all.tar.xz")
    whole = (here / "all.tar.xz").read_bytes()
    (here / "cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    before = filled.count(include_rejected=True)
    shutil.rmtree(here / "home" / "restored", ignore_errors=True)

    assert sentence in refusal(capsys, monkeypatch, *arguments)

    assert not (here / "x.tar.xz").exists()
    assert filled.count(include_rejected=True) == before
    assert not list((here / "home").glob("restored/*"))


def test_an_empty_store_has_nothing_to_archive(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There are no results to archive yet" in refusal(capsys, monkeypatch, "-o", "x.tar.xz")
