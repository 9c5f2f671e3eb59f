"""Making a file or folder once on file systems whose locks hold on one host only, or not at all."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from steptime.process_identity import boot_id
from steptime.staging.make_once import ABANDONED_AFTER_S, make_once, record_path

IS_KILLED = """
import os, sys
from pathlib import Path
from steptime.staging.make_once import make_once
def make(part, run):
    part.mkdir()
    (part / "half").touch()
    os.kill(os.getpid(), 9)
target = Path(sys.argv[1])
make_once(target, "build of", target.exists, make)
"""


@pytest.fixture
def no_locks(monkeypatch):
    """Act as on a file system without locks: two calls are then like two hosts."""

    def refused(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refused)


@pytest.fixture
def folder(tmp_path):
    """Return the path of the folder that a test makes."""
    return tmp_path / "shared" / "venv"


def make_folder(content):
    def make(part, _run):
        part.mkdir()
        (part / "content").write_text(content)

    return make


def left_by(target, boot, age_s):
    """Make a read-only folder as a process left it that was killed; return its path."""
    left = target.with_name(f".{target.name}.{boot}.{uuid.uuid4().hex}.part")
    (left / "half").mkdir(parents=True)
    (left / "half" / "file").touch()
    (left / "half").chmod(0o500)
    changed = time.time() - age_s
    os.utime(left, (changed, changed))
    return left


def names(target):
    """Return the names beside `target`, without the lock file, which stays."""
    return {path.name for path in target.parent.iterdir()} - {f".{target.name}.lock"}


def test_what_is_complete_is_not_made_again(folder):
    make_once(folder, "build of", folder.is_dir, make_folder("first"))
    make_once(folder, "build of", folder.is_dir, make_folder("second"))
    assert (folder / "content").read_text() == "first"
    assert names(folder) == {"venv"}


@pytest.mark.usefixtures("no_locks")
def test_of_two_hosts_that_make_a_folder_at_once_the_last_one_drops_its_own(folder, capsys):
    def make(part, run):
        make_once(folder, "build of", folder.is_dir, make_folder("quick host"))
        make_folder("slow host")(part, run)

    make_once(folder, "build of", folder.is_dir, make)
    assert (folder / "content").read_text() == "quick host"
    assert capsys.readouterr().out == f"another host has made {folder} meanwhile\n"
    assert names(folder) == {"venv"}


@pytest.mark.usefixtures("no_locks")
def test_of_two_hosts_that_make_a_file_at_once_the_record_is_that_of_the_first(tmp_path):
    target = tmp_path / "image.sqsh"

    def write(part, content):
        part.write_text(content)
        return {"content": content}

    def make(part, _run):
        make_once(target, "import of", target.is_file, lambda part, _run: write(part, "quick host"))
        return write(part, "slow host")

    make_once(target, "import of", target.is_file, make)
    assert target.read_text() == "quick host"
    assert json.loads(record_path(target).read_text()) == {"content": "quick host"}
    assert names(target) == {"image.sqsh", "image.sqsh.json"}


def test_a_folder_that_another_host_renames_at_the_last_moment_is_used(folder, monkeypatch):
    """The rename fails, because only an empty folder can be renamed to."""
    rename = Path.rename

    def overtaken(path, target):
        if target == folder and not folder.exists():
            folder.mkdir()
            (folder / "content").write_text("quick host")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    make_once(folder, "build of", folder.is_dir, make_folder("slow host"))
    assert (folder / "content").read_text() == "quick host"
    assert names(folder) == {"venv"}


def test_a_folder_that_cannot_be_used_is_replaced_when_the_new_one_is_complete(folder):
    make_once(folder, "build of", folder.is_dir, make_folder("old"))

    def is_new():
        return (folder / "content").read_text() == "new"

    def fail(part, run):
        make_folder("half")(part, run)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        make_once(folder, "build of", is_new, fail)
    assert (folder / "content").read_text() == "old"
    make_once(folder, "build of", is_new, make_folder("new"))
    assert (folder / "content").read_text() == "new"
    assert names(folder) == {"venv"}


def test_a_killed_process_leaves_nothing_under_the_final_name_and_the_next_one_removes_its_part(
    folder,
):
    killed = subprocess.run([sys.executable, "-c", IS_KILLED, folder], check=False)
    assert killed.returncode == -9
    (left,) = names(folder)
    assert (folder.parent / left / "half").is_file()
    make_once(folder, "build of", folder.is_dir, make_folder("new"))
    assert {path.name for path in folder.iterdir()} == {"content"}
    assert names(folder) == {"venv"}


def test_what_another_host_left_is_removed_after_a_day_and_not_while_it_may_be_in_use(folder):
    other = str(uuid.uuid4())
    recent = left_by(folder, other, ABANDONED_AFTER_S - 3600)
    left_by(folder, other, ABANDONED_AFTER_S + 3600)
    left_by(folder, boot_id(), 0)
    another_thing = left_by(folder.with_name("venv.2"), other, ABANDONED_AFTER_S + 3600)
    make_once(folder, "build of", folder.is_dir, make_folder("new"))
    assert names(folder) == {"venv", recent.name, another_thing.name}


@pytest.mark.usefixtures("no_locks")
def test_without_locks_what_this_host_left_may_be_in_use_for_a_day_too(folder):
    recent = left_by(folder, boot_id(), ABANDONED_AFTER_S - 3600)
    left_by(folder, boot_id(), ABANDONED_AFTER_S + 3600)
    make_once(folder, "build of", folder.is_dir, make_folder("new"))
    assert names(folder) == {"venv", recent.name}


def test_a_process_whose_part_was_removed_fails_and_never_renames_what_is_left_of_it(folder):
    """A host that stood still for more than a day goes on."""

    def make(part, run):
        make_folder("slow host")(part, run)
        shutil.rmtree(part)

    with pytest.raises(FileNotFoundError):
        make_once(folder, "build of", folder.is_dir, make)
    assert names(folder) == set()
