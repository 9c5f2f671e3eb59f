"""`steptime archive`: what goes into a file comes back whole, and nothing is overwritten."""

import io
import json
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import publish
from typer.testing import CliRunner

from steptime import __version__
from steptime.cli import app, archive, main
from steptime.errors import UserError
from steptime.judging.comparison import compare_since
from steptime.judging.judgements import accept
from steptime.results import judgement_rows
from steptime.results.database import REVISION, close_engines
from steptime.results.models import Check, Result, Verdict
from steptime.results.store import Store

MakeResult = Callable[..., Result]
LOG = b"step 1\n" * 1000
BESIDE = {"end.json": b"{}", "run.json": b"{ }", "of-ranks.jsonl": b"[]", "job.sh": b"true\n"}
BESIDE |= {"log-0.out.gz": b"\x1f", "notes.txt": b"1", "nccl.log": b"2", "cluster.yaml": b"3"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run, with a store of eight runs, a level that is accepted, and a rejected run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'first.db'}")
    return tmp_path


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory, make_result: MakeResult) -> Path:
    """A folder with the store `first.db`, and with folders of its runs that nothing changes."""
    made = tmp_path_factory.mktemp("archived")
    store = Store(f"sqlite:///{made / 'first.db'}")
    for number in range(8):
        folder = made / "experiments" / f"run-{number}"
        log = make_result("x").log.model_copy(update={"path": str(folder / "log-run.out")})
        publish(store, make_result(f"run-{number}", submitted_at=1e9 + number, log=log))
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected 20 steps, but found 3."),))
    publish(store, make_result("bad", verdict=bad, submitted_at=2e9))
    accept(store, "run-7", note="NeMo 2.8", accepted_by="ada")
    close_engines()  # the whole store is in its file
    folder = made / "experiments" / "run-3"
    for name, content in {"log-run.out": LOG, **BESIDE, "profile.nsys-rep": b"x", "core": b"x"}.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "code" / "checkpoints").mkdir(parents=True)
    (folder / "code" / "checkpoints" / "weights.json").write_bytes(b"x" * 100_000)
    (folder / "passwords.json").symlink_to("/etc/passwd")
    return made


@pytest.fixture
def filled(here: Path, made_once: Path) -> Store:
    shutil.copy(made_once / "first.db", here)
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


def judged(store: Store) -> list[tuple[Any, ...]]:
    names = ("job_name", "verdict", "rests_on", "drift")
    return [tuple(row[name] for name in names) for row in judgement_rows.judged_rows(store, {})]


def test_another_store_has_all_of_it(filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = call("-o", "all.tar.zst")
    other = Store(f"sqlite:///{here / 'other.db'}")
    monkeypatch.setenv("STEPTIME_STORE_URL", other.url)

    back = call("restore", "all.tar.zst")

    assert told.startswith("archived: 9 runs, ")
    assert told.endswith(" kB in all.tar.zst; of 7 this machine has no log\n")
    folder = here / "home" / "restored" / "all"
    assert back == f"restored: 9 runs; logs and config are in {folder}\n"
    assert everything(other) == everything(filled)
    assert judged(other) == judged(filled)
    assert [row["job_name"] for row in other.results(search="llama RUN-3")] == ["run-3"]
    whole = everything(other)[1]
    assert {name: bool(rows) for name, rows in whole.items()} == {
        "runs": True,
        "accepted_levels": True,
        "checkpoints": False,
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
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest.pop("made_at") == pytest.approx(time.time(), abs=600)
    assert manifest == {"archive": 1, "revision": REVISION, "steptime": __version__}


@pytest.mark.long
def test_it_goes_through_either_kind_of_database(
    filled: Store, here: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = everything(filled)
    for place, url in enumerate((store_url, f"sqlite:///{here / 'third.db'}")):
        call("-o", f"{place}.tar.zst")
        monkeypatch.setenv("STEPTIME_STORE_URL", url)
        call("restore", f"{place}.tar.zst")
        assert everything(Store()) == first


@pytest.mark.parametrize("missing", [1, 5, 1000])
def test_one_that_is_cut_anywhere_is_refused(
    filled: Store,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: int,
) -> None:
    call("-o", "all.tar.zst")
    (here / "cut.tar.zst").write_bytes((here / "all.tar.zst").read_bytes()[:-missing])

    told = refusal(capsys, monkeypatch, "restore", "cut.tar.zst", "--into", "back")

    assert told.endswith("'cut.tar.zst' cannot be read as an archive: it is cut.\n")
    assert not (here / "back").exists()


def test_a_part_of_a_store(filled: Store) -> None:
    assert call("--state", "rejected", "-o", "bad.tar.zst").startswith("archived: 1 run, ")


def test_runs_that_join_a_series_are_judged_together_with_it(
    filled: Store, here: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("-o", "first.tar.zst")
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{here / 'second.db'}")
    other = Store()
    for number, level in enumerate((0.2, 0.3)):
        publish(other, make_result(f"other-{number}", submitted_at=2e9 + number, step_times=[level] * 20))

    call("restore", "first.tar.zst")

    row = compare_since(other, 0).rows[0]
    assert row["job_name"] == "other-1"
    assert None not in {verdict for _, verdict, *_ in judged(other)}
    assert row["baseline_runs"] == 2, "run-7, whose level was accepted, and other-0"


def test_how_runs_scale_follows_from_those_that_are_there(
    here: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run comes without its base, and is that of a run that was there."""
    first, other = (Store(f"sqlite:///{here / name}.db") for name in ("first", "other"))
    for store, gpus in ((first, 1), (first, 2), (other, 4)):
        publish(store, make_result(f"of-{gpus}", gpus=gpus, dag_run_id=f"{gpus}", submitted_at=1e9 + gpus))
    archive.write_archive(first, first.results(gpus=2), here / "part.tar.zst")

    monkeypatch.setenv("STEPTIME_STORE_URL", other.url)
    call("restore", "part.tar.zst")

    assert [row["scaling_base_jobs"] for row in other.results()] == ["of-2", None]


def test_runs_that_are_there_stay_and_are_told(
    filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch, make_result: MakeResult
) -> None:
    call("-o", "all.tar.zst")
    other = Store(f"sqlite:///{here / 'other.db'}")
    monkeypatch.setenv("STEPTIME_STORE_URL", other.url)
    for name in ("run-2", "run-5"):
        publish(other, make_result(name, step_times=[9.0] * 20))
    kept = other.run("run-5")

    back = call("restore", "all.tar.zst", "--into", "first").splitlines()
    again = call("restore", "all.tar.zst", "--into", "second").splitlines()

    assert back == [
        "restored: 7 runs; logs and config are in first",
        "in the store already, and left as it was: 2 runs",
        "the archive has otherwise: run-2, run-5",
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
    (here / "mine.tar.zst").write_text("mine")
    assert "'mine.tar.zst' is there already" in refusal(capsys, monkeypatch, "-o", "mine.tar.zst")
    assert (here / "mine.tar.zst").read_text() == "mine"
    call("-o", "all.tar.zst")
    (here / "mine").mkdir()
    sentence = refusal(capsys, monkeypatch, "restore", "all.tar.zst", "--into", "mine")
    assert "'mine' is there already: name another with --into, or remove it." in sentence
    assert list((here / "mine").iterdir()) == []


def test_what_breaks_off_leaves_no_file(filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_add_json", fail)
    with pytest.raises(OSError, match="No space"):
        archive.write_archive(filled, filled.results(), here / "x.tar.zst")
    assert not (here / "x.tar.zst").exists()


def member(name: str, content: bytes = b"x", **values: Any) -> tuple[tarfile.TarInfo, io.BytesIO]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in values.items():
        setattr(made, key, value)
    return made, io.BytesIO(content)


MANIFEST = {"archive": 1, "revision": REVISION, "steptime": "0.1.0", "made_at": 1.0}
HOSTILE = {
    "a path upwards": (member("../../planted"), "cannot be read as an archive"),
    "an absolute path": (member("/planted"), None),
    "a link": (member("logs/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "'logs/x' in it is no file"),
    "a hard link": (member("logs/x", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "in it is no file"),
    "a device": (member("logs/x", type=tarfile.CHRTYPE), "'logs/x' in it is no file"),
    "no manifest": (None, "is no archive of steptime: it has no manifest.json"),
    "another revision": (
        member("manifest.json", json.dumps({**MANIFEST, "revision": "0019"}).encode()),
        "was made by steptime 0.1.0 from a store of revision 0019, and this steptime reads",
    ),
    "another form": (
        member("manifest.json", json.dumps({**MANIFEST, "archive": 2}).encode()),
        "restore it with the steptime that made it.",
    ),
    "a manifest that is no JSON": (member("manifest.json", b"{"), "it has no manifest.json"),
    "a manifest of something else": (member("manifest.json", b"{}"), "it has no manifest.json"),
    "a manifest that is a list": (member("manifest.json", b"[]"), "it has no manifest.json"),
    "a run without rows": (member("runs/000001.json", b'{"runs": []}'), "has a run that cannot be read"),
    "a run of something else": (member("runs/000001.json", b"{}"), "has a run that cannot be read"),
    "a run that is no JSON": (member("runs/000001.json", b"{"), "has a run that cannot be read"),
    "a run of nothing": (member("runs/000001.json", b"[]"), "has a run that cannot be read"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_archive_of_ours_holds_is_refused_whole(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, sentence = HOSTILE[kind]
    with archive._new_archive(here / "x.tar.zst") as made:
        if planted is not None:
            made.addfile(*member("manifest.json", json.dumps(MANIFEST).encode()))
            planted[1].seek(0)
            made.addfile(*planted)
    if sentence is None:  # the filter takes the path as one within the folder
        call("restore", "x.tar.zst", "--into", "back")
        assert (here / "back" / "planted").read_bytes() == b"x"
    else:
        assert sentence in refusal(capsys, monkeypatch, "restore", "x.tar.zst", "--into", "back")
        assert not [path for path in here.iterdir() if "back" in path.name], "no file is left"
        assert not Store().exists() or Store().count(include_rejected=True) == 0
    assert not Path("/planted").exists()
    assert not (here.parent / "planted").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["-o", "x.zip"],
            "name the file with -o, as results.tar.zst in a folder that is there, not 'x.zip'.",
        ),
        (["-o", "gone/x.tar.zst"], "in a folder that is there, not 'gone/x.tar.zst'."),
        ([], "name the file with -o, as results.tar.zst in a folder that is there."),
        (["--cluster", "gone", "-o", "x.tar.zst"], "unknown cluster of stored results 'gone'"),
        (["restore", "gone.tar.zst"], "there is no file 'gone.tar.zst'"),
        (["restore", "text.tar.zst"], "'text.tar.zst' cannot be read as an archive"),
        (["restore", "cut.tar.zst"], "'cut.tar.zst' cannot be read as an archive"),
        (["restore", "damaged.tar.zst"], "'damaged.tar.zst' cannot be read as an archive"),
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
    (here / "text.tar.zst").write_text("a text")
    call("-o", "all.tar.zst")
    whole = (here / "all.tar.zst").read_bytes()
    (here / "cut.tar.zst").write_bytes(whole[: len(whole) // 2])
    (here / "damaged.tar.zst").write_bytes(whole[:5000] + b"damage" + whole[5006:])
    before = filled.count(include_rejected=True)
    shutil.rmtree(here / "home" / "restored", ignore_errors=True)

    assert sentence in refusal(capsys, monkeypatch, *arguments)

    assert not (here / "x.tar.zst").exists()
    assert filled.count(include_rejected=True) == before
    assert not list((here / "home").glob("restored/*"))


def test_its_files_are_put_where_they_belong_from_beside_it(
    filled: Store, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder of a machine may be small, and a move within a disk cannot break off."""
    call("-o", "all.tar.zst")
    insert_all, seen = archive._insert_all, []

    def look(*given: Any) -> Any:
        seen.extend(path.name.rpartition(".")[0] for path in here.glob("other/.*"))
        return insert_all(*given)

    monkeypatch.setattr(archive, "_insert_all", look)
    call("restore", "all.tar.zst", "--into", "other/place")
    assert seen == [".place"]
    assert [path.name for path in (here / "other").iterdir()] == ["place"]


def test_nothing_in_it_tells_of_an_account(filled: Store, here: Path) -> None:
    call("-o", "all.tar.zst")
    archive._unpack(here / "all.tar.zst", here / "all.tar")
    with tarfile.open(here / "all.tar") as made:
        assert {(one.uid, one.gid, one.uname, one.gname) for one in made} == {(0, 0, "", "")}
        assert all(one.mtime > 0 for one in made)


def test_an_address_that_cannot_be_is_said_as_such(
    filled: Store, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call("-o", "all.tar.zst")
    monkeypatch.setenv("STEPTIME_STORE_URL", "nonsense")
    told = refusal(capsys, monkeypatch, "restore", "all.tar.zst", "--into", "back")
    assert "is no database address" in told
    with pytest.raises(UserError, match=r"^STEPTIME_STORE_URL is no database address"):
        archive.restore(Store(), here / "all.tar.zst", here / "back")
    assert not (here / "back").exists()


def test_an_empty_store_has_nothing_to_archive(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There are no results to archive yet" in refusal(capsys, monkeypatch, "-o", "x.tar.zst")
