"""Bringing an image to a cluster once, whole and recorded, in spite of kills, failures and concurrency.

Enroot and apptainer are stand-ins (tests/stand_ins); the squashfs files, the locks and the jobs are real.
"""

import ast
import asyncio
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from called import captured

from steptime.clusters.containers import Mount
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure, UserError
from steptime.staging.stage import stage, stage_image
from steptime.staging.unpack_image import _make_mount_point

from .reported import DEADLINE_S, Reported, child_running

pytestmark = pytest.mark.service

NEMO = "nvcr.io/nvidia/nemo:25.04.00"
URI = "docker://nvcr.io#nvidia/nemo:25.04.00"
LOCKS_THAT_DO_NOT_HOLD = """
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""
STAND_INS = Path(__file__).parents[1] / "stand_ins"


class Staging(Reported):
    """One call of `stage_image`, with what it reports."""

    def __init__(self, config, **changes):
        super().__init__()
        self.config = config.model_copy(update=changes)

    async def __call__(self, name=NEMO):
        cluster = LocalCluster(self.config)
        return await stage_image(
            cluster,
            self.config,
            name,
            mounts=(Mount(self.config.root, False), Mount("/elsewhere/checkpoints", False)),
            job_options=(),
            report=self.lines.append,
        )


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return the folder of the stand-ins on the PATH, which has their faults and a log of their calls."""
    for program in ("mksquashfs", "unsquashfs"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: apt-get install --yes squashfs-tools")
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("enroot", "apptainer"):
        (folder / name).symlink_to(STAND_INS / name)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def config(config, programs):
    """Return a local cluster with enroot whose jobs may run side by side."""
    changes = {"container": "pyxis", "slots": 4, "exclusive": False, "poll_interval_s": 0.05}
    return config.model_copy(update=changes)


def calls(programs, command):
    """Return the calls of a stand-in's command, each as its arguments."""
    file = programs / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [arguments for line in lines if (arguments := ast.literal_eval(line))[0] == command]


def images(config):
    """Return the files in the folder of images, without the locks, which stay."""
    return {path.name for path in Path(config.root, "images").iterdir() if path.suffix != ".lock"}


async def test_an_image_is_imported_under_the_documents_name_and_recorded(config, programs):
    staging = Staging(config)
    image = await staging()
    assert image.path == f"{config.root}/images/nvidia+nemo+25.04.00.sqsh"
    assert images(config) == {"nvidia+nemo+25.04.00.sqsh", "nvidia+nemo+25.04.00.sqsh.json"}
    unsquashfs = ["unsquashfs", "-cat", image.path, "etc/rc"]
    content = captured(unsquashfs, check=True)
    pinned = f"docker://nvcr.io#nvidia/nemo@{image.digest}"
    assert content.stdout == f"# enroot-provenance: {pinned}\n"
    record = json.loads(Path(f"{image.path}.json").read_text())
    assert (record["image"], record["source"], record["tool"]) == (NEMO, URI, "enroot 4.1.2")
    assert (record["digest"], record["sha256"]) == (image.digest, image.sha256)
    assert record["size"] == Path(image.path).stat().st_size
    assert record["imported_at"] == pytest.approx(time.time(), abs=DEADLINE_S)
    assert digest_of(Path(image.path)) == image.sha256
    assert image.digest is not None
    assert image.digest.startswith("sha256:")
    assert "[INFO] Fetching image manifest" in staging.lines
    (arguments,) = calls(programs, "import")
    assert arguments[-2:] == ["--", pinned]


async def test_an_image_that_is_named_by_its_digest_is_imported_by_it(config, programs):
    digest = f"sha256:{'ab' * 32}"
    image = await Staging(config)(f"nvcr.io/nvidia/nemo:25.04.00@{digest}")
    assert image.digest == digest
    (arguments,) = calls(programs, "import")
    assert arguments[-1] == f"docker://nvcr.io#nvidia/nemo@{digest}"


async def test_a_run_is_staged_with_its_image_and_without_an_environment(config, programs, make_result):
    run = make_result().run
    run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": NEMO})})
    staged = await stage(LocalCluster(config), config, run, print)
    assert (staged.python, staged.venv_lock_sha256, staged.image) == (None, None, NEMO)
    record = json.loads(Path(f"{staged.image_path}.json").read_text())
    assert (staged.image_digest, staged.image_sha256) == (record["digest"], record["sha256"])
    assert Path(staged.trainer_path, "trainer", "__main__.py").is_file()
    assert not Path(config.root, "venvs").exists()


async def test_two_at_once_import_once_and_the_second_says_that_it_waits(config, programs):
    (programs / "gate").touch()
    first, second = Staging(config), Staging(config)
    importing = asyncio.create_task(first())
    await first.has_said("Creating squashfs")
    waiting = asyncio.create_task(second())
    await second.has_said("waiting for another import of")
    (programs / "gate").unlink()
    assert await importing == await waiting
    assert len(calls(programs, "import")) == 1


async def test_two_login_nodes_whose_locks_do_not_hold_between_them_use_the_first_one_s_file(
    config, programs, tmp_path
):
    """On Lustre with `localflock` each login node gets the lock, and both import."""
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(LOCKS_THAT_DO_NOT_HOLD)
    logins = [tmp_path / "login0", tmp_path / "login1"]
    for login in logins:
        login.write_text(f'#!/bin/sh\nPYTHONPATH={patches} exec {config.python} "$@"\n')
        login.chmod(0o755)
    (programs / "gate").touch()
    first, second = (Staging(config, container="bwrap", python=str(login)) for login in logins)
    importing = [asyncio.create_task(first()), asyncio.create_task(second())]
    await first.has_said("Creating squashfs")
    await second.has_said("Creating squashfs")
    (programs / "gate").unlink()
    image, same = await asyncio.gather(*importing)
    assert image == same
    assert len(calls(programs, "import")) == 2
    file = Path(config.root, "images", "nvidia+nemo+25.04.00.sqsh")
    assert images(config) == {file.name, f"{file.name}.json", "unpacked"}
    assert json.loads(Path(f"{file}.json").read_text())["sha256"] == digest_of(file) == image.sha256


async def test_after_a_killed_import_the_next_one_waits_for_enroot_and_starts_afresh(config, programs):
    (programs / "gate").touch()
    killed, again = Staging(config), Staging(config)
    importing = asyncio.create_task(killed())
    await killed.has_said("Creating squashfs")
    os.kill(child_running("import_image.py").pid, signal.SIGKILL)  # enroot goes on alone
    waiting = asyncio.create_task(again())
    await again.has_said("waiting for another import of")
    (programs / "gate").unlink()
    image = await waiting
    assert any("removing what an unfinished process left" in line for line in again.lines)
    assert len(calls(programs, "import")) == 2
    assert images(config) == {Path(image.path).name, f"{Path(image.path).name}.json"}
    with pytest.raises(SystemFailure, match="exit code -9"):
        await importing


async def test_an_import_that_is_ended_ends_enroot_and_clears_away(config, programs):
    (programs / "gate").touch()
    ended = Staging(config)
    importing = asyncio.create_task(ended())
    await ended.has_said("Creating squashfs")
    process = child_running("import_image.py")
    (enroot,) = process.children()
    process.terminate()
    with pytest.raises(SystemFailure, match="it was ended from outside"):
        await importing
    assert not enroot.is_running()
    assert images(config) == set()


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        ("unauthorized", UserError, "the registry refused the login: give enroot credentials for it"),
        ("unknown", UserError, "the registry has no such image or version: check its name"),
        ("unreachable", SystemFailure, "the registry could not be reached from"),
        ("disk full", SystemFailure, "the disk is full: an image needs some three times its size"),
        (
            "temporary files' disk full",
            SystemFailure,
            "the disk is full: an image needs some three times its size",
        ),
        ("no jq", UserError, "enroot lacks a program that it needs"),
        ("half", SystemFailure, "is not a complete image (300 bytes)"),
        ("nothing", SystemFailure, "is not a complete image (0 bytes)"),
    ],
)
async def test_a_failed_import_says_why_and_leaves_nothing(config, programs, fault, error, why):
    (programs / "fault").write_text(fault)
    with pytest.raises(error) as failed:
        await Staging(config)()
    sentence = str(failed.value).splitlines()[0]
    assert sentence.startswith(f"image {NEMO} could not be brought to {config.root}/images/nvidia+nemo+25")
    assert why in sentence
    assert images(config) == set()
    (programs / "fault").unlink()
    assert Path((await Staging(config)()).path).exists()


@pytest.mark.parametrize("change", ["content", "touched"])
async def test_a_file_that_was_written_to_is_read_and_replaced_if_it_is_another(config, programs, change):
    image = await Staging(config)()
    file = Path(image.path)
    if change == "content":
        data = bytearray(file.read_bytes())
        data[200] ^= 1
        file.write_bytes(data)
    else:
        file.touch()
    staging = Staging(config)
    again = await staging()
    assert f"{file} was written to since: reading it" in staging.lines
    if change == "touched":
        assert again == image
        assert len(calls(programs, "import")) == 1
        last = Staging(config)
        await last()
        assert last.lines == [f"{file} is there already"]  # not read again
    else:
        assert f"{file} is not what was recorded ({image.sha256}): it is replaced" in staging.lines
        assert len(calls(programs, "import")) == 2
    assert json.loads(Path(f"{file}.json").read_text())["sha256"] == again.sha256
    assert digest_of(file) == again.sha256


def digest_of(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


async def test_an_import_that_is_killed_before_its_record_leaves_the_earlier_file_with_its_record(
    config, programs
):
    """Nobody takes the earlier record for that of another file."""
    file = Path((await Staging(config)()).path)
    earlier = file.read_bytes()
    file.write_bytes(earlier + b"changed")
    (programs / "gate").touch()
    killed = Staging(config)
    importing = asyncio.create_task(killed())
    await killed.has_said("Creating squashfs")
    os.kill(child_running("import_image.py").pid, signal.SIGKILL)
    (programs / "gate").unlink()
    with pytest.raises(SystemFailure, match="exit code -9"):
        await importing
    assert file.read_bytes() == earlier + b"changed"
    image = await Staging(config)()
    assert digest_of(file) == image.sha256 == json.loads(Path(f"{file}.json").read_text())["sha256"]


async def test_an_image_that_was_put_there_by_hand_is_taken_and_recorded(config, programs):
    image = await Staging(config)()
    Path(f"{image.path}.json").unlink()
    (programs / "enroot").unlink()  # as if no registry can be reached
    staging = Staging(config)
    assert await staging() == image._replace(digest=None)
    assert staging.lines == [f"{image.path} is there without a record: reading it"]
    assert json.loads(Path(f"{image.path}.json").read_text())["tool"] is None


async def test_a_name_that_is_none_never_reaches_the_cluster(config, programs):
    canary = programs / "canary"
    for name in (f"nvidia/nemo:$(touch {canary})", f"x;touch {canary}:1", "--output=x:1", "../../etc/x:1"):
        with pytest.raises(UserError, match="is not a container image name"):
            await Staging(config)(name)
    assert not canary.exists()
    assert not Path(config.root).exists()


async def test_apptainer_pulls_a_sif_file(config, programs):
    image = await Staging(config, container="apptainer")()
    assert image.path == f"{config.root}/images/nvidia+nemo+25.04.00.sif"
    assert image.digest is None
    uri = "docker://nvcr.io/nvidia/nemo:25.04.00"
    assert Path(image.path).read_text() == f"SIF of {uri}\n"
    (arguments,) = calls(programs, "pull")
    assert arguments[0] == "pull"
    assert arguments[2] == uri


# --- in a job ------------------------------------------------------------------------------------------


async def test_where_the_login_node_may_not_import_a_job_does_and_all_share_it(config, programs):
    (programs / "gate").touch()
    first, second = Staging(config, import_in_job=True), Staging(config, import_in_job=True)
    staged = [asyncio.create_task(staging()) for staging in (first, second)]
    await first.has_said("Creating squashfs")
    await second.has_said("Creating squashfs")  # the log of the same job
    (programs / "gate").unlink()
    assert await staged[0] == await staged[1]
    assert first.lines[0] == second.lines[0]
    assert first.lines[0].startswith("in job stage-")
    assert len(calls(programs, "import")) == 1
    assert len(list(Path(config.root, "staging", "jobs").iterdir())) == 1


async def test_a_job_that_failed_is_followed_by_a_fresh_one(config, programs):
    (programs / "fault").write_text("unauthorized")
    with pytest.raises(UserError, match="the registry refused the login"):
        await Staging(config, import_in_job=True)()
    (programs / "fault").unlink()
    await Staging(config, import_in_job=True)()
    names = sorted(path.name for path in Path(config.root, "staging", "jobs").iterdir())
    assert [name.rpartition("-")[2] for name in names] == ["1", "2"]


# --- for bwrap -----------------------------------------------------------------------------------------


async def test_for_bwrap_the_image_is_unpacked_once_with_places_to_mount_at(config, programs):
    first, second = Staging(config, container="bwrap"), Staging(config, container="bwrap")
    image, same = await asyncio.gather(first(), second())
    assert image == same
    folder = Path(image.path)
    assert image.digest is not None
    assert folder == Path(config.root, "images", "unpacked", image.digest.removeprefix("sha256:")[:16])
    assert image.environment == {"PATH": "/image/bin:/usr/bin:/bin", "NEMO": "25.04"}
    for mount_point in ("dev", "proc", "sys", "tmp", config.root[1:], "elsewhere/checkpoints"):
        assert (folder / mount_point).is_dir()
    assert (folder / "etc" / "passwd").read_bytes() == b""
    unpacking = [
        line for staging in (first, second) for line in staging.lines if line.startswith("unpacking")
    ]
    assert len(unpacking) == 1
    assert [path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")] == [folder.name]


def test_no_place_to_mount_at_is_made_outside_of_the_image(tmp_path):
    image, outside = tmp_path / "image", tmp_path / "outside"
    image.mkdir()
    outside.mkdir()
    (image / "elsewhere").symlink_to(outside)
    _make_mount_point(image, "/elsewhere/checkpoints")
    _make_mount_point(image, "/elsewhere")
    (image / "gone").symlink_to(outside / "gone")
    _make_mount_point(image, "/gone")
    _make_mount_point(image, "/data/of/all")
    assert list(outside.iterdir()) == []
    assert (image / "data/of/all").is_dir()


@pytest.mark.parametrize(
    ("unsquashfs", "exit_code", "says"),
    [
        (None, 2, "unsquashfs is not installed on "),
        ("echo 'Write failed: No space left on device'; exit 1", 1, "failed: the disk is full: "),
        ("echo 'Write failed: Disk quota exceeded'; exit 1", 1, "failed: the disk is full: "),
        ("echo 'Cannot find a superblock'; exit 3", 1, "failed: unsquashfs ended with exit code 3"),
    ],
)
def test_why_an_image_cannot_be_unpacked_is_said(tmp_path, unsquashfs, exit_code, says):
    (programs := tmp_path / "programs").mkdir()
    if unsquashfs is not None:
        (programs / "unsquashfs").write_text(f"#!/bin/sh\n{unsquashfs}\n")
        (programs / "unsquashfs").chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "steptime.staging.unpack_image",
        "image.sqsh",
        str(tmp_path / "unpacked"),
    ]
    done = captured(command, env=os.environ | {"PATH": str(programs)})
    assert (done.returncode, says in done.stdout) == (exit_code, True), done
    assert not (tmp_path / "unpacked").exists()
