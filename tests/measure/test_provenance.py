"""The provenance of a result: the commit of this project's own checkout, and of no other."""

import subprocess

import pytest

from steptime import __version__
from steptime.measure import record as module


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a folder that stands in for this project's checkout."""
    folder = tmp_path.resolve() / "project"
    folder.mkdir()
    monkeypatch.setattr(module, "_PROJECT", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.resolve().parent))
    return folder


def git(folder, *arguments):
    of_somebody = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    command = ["git", "-C", str(folder), *of_somebody, *arguments]
    return subprocess.check_output(command, text=True).strip()


def committed(folder):
    git(folder, "init", "--quiet")
    (folder / "file").write_text("1")
    git(folder, "add", "file")
    git(folder, "commit", "--quiet", "-m", "One")
    return git(folder, "rev-parse", "HEAD")


def state():
    made = module.describe_code()
    assert made["steptime_version"] == __version__
    return made["git_commit"], made["git_clean"]


def test_commit_and_changes_are_of_this_projects_checkout(project):
    assert state() == (None, None), "no repository"
    commit = committed(project)
    assert state() == (commit, True)
    (project / "other").write_text("untracked")
    assert state() == (commit, False)


def test_a_package_inside_of_somebody_elses_repository_has_no_commit(project):
    committed(project.parent)
    assert state() == (None, None)
