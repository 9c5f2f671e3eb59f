"""The released files: every build has the same bytes, and files by others come with their licences."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))
OUR_DATA = (
    *(
        "config/clusters/*",
        "config/expectations/*",
        "config/notifications.yaml",
        "config/workloads/nccl-26.11.yaml",
    ),
    *("config/sweeps/example-nodes.yaml", "config/sweeps/example-weekly.yaml", "requirements-bootstrap.txt"),
    "config/trials/example-*.yaml",
    *("trainer/requirements-cpu.in", "trainer/requirements-cpu.lock.txt", "plugins/steptime/py.typed"),
    *(f"trainer/requirements-bridge-cpu.{kind}" for kind in ("in", "absent.txt", "lock.txt")),
    *("plugins/steptime/logs/*.yaml", "plugins/steptime/*.j2", "plugins/steptime/clusters/runai/start.sh"),
    *("plugins/steptime/pages/static/*.js", "plugins/steptime/pages/static/icon.svg"),
    *("plugins/steptime/pages/static/index.html", "plugins/steptime/pages/static/results.css"),
)
"""Shipped files that are not Python and not by others."""
PAGES = ("CHANGELOG.md", "SECURITY.md")
SIGNED = re.compile(r"copyright|SPDX-|licensed under|released under", re.IGNORECASE)


def shipped():
    """Yield the tracked files that the wheel contains, as paths in the repository."""
    listed = ["git", "ls-files", "--", "config", "dags", "plugins", "trainer", "requirements-bootstrap.txt"]
    yield from subprocess.run(
        listed, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def noticed(field):
    """Return all words of the lines of NOTICE that begin with `field`."""
    lines = (ROOT / "NOTICE").read_text(encoding="utf-8").splitlines()
    return [word for line in lines if line.startswith(f"{field}: ") for word in line.split()[1:]]


def matches(path, patterns):
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def test_files_of_others_are_in_the_notice():
    files, ours, theirs = list(shipped()), OUR_DATA, noticed("Files")
    vendored = [path for path in files if "vendor" in Path(path).parts]
    data = [path for path in files if not path.endswith(".py") and path not in vendored]
    assert vendored, "the pages ship Chart.js"
    assert [path for path in vendored if not matches(path, theirs)] == []
    assert [path for path in data if not matches(path, ours) and not matches(path, theirs)] == []
    signed = [path for path in files if SIGNED.search((ROOT / path).read_text(encoding="utf-8"))]
    assert [path for path in signed if not matches(path, theirs)] == []
    assert [
        pattern for pattern in (*ours, *theirs) if not any(matches(path, [pattern]) for path in files)
    ] == []


def test_each_licence_that_the_notice_names_is_kept():
    assert set(noticed("License")) == {"LICENSE", *licences()}


def build(source, out, umask, options=()):
    """Build both files from a copy of the shipped sources, as `make dist` does: the wheel from the sdist.

    `options` can limit this to one of them.
    """
    for path in [*shipped(), "pyproject.toml", "README.md", "LICENSE", "NOTICE", *licences(), *PAGES]:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path, follow_symlinks=False)
    command = [UV, "build", "--quiet", *options, "--out-dir", str(out), str(source)]
    moment = os.environ | {"SOURCE_DATE_EPOCH": "1790000000"}
    subprocess.run(command, env=moment, umask=umask, check=True)
    return {path.name: path.read_bytes() for path in out.glob("steptime-*")}


@pytest.mark.service
def test_the_wheel_has_what_is_shipped_and_nothing_else_and_every_build_gives_the_same_bytes(
    tmp_path,
):
    """The other builds are in other folders, with other permissions, and from sources without the sdist."""
    first = build(tmp_path / "source", tmp_path, umask=0o022)
    [wheel], [sdist] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    second = build(tmp_path / "b" / "deeper", tmp_path / "out-b", umask=0o077, options=("--wheel",))
    assert second == {wheel.name: first[wheel.name]}
    assert build(tmp_path / "c", tmp_path / "out-c", umask=0o077, options=("--sdist",)) == {
        sdist.name: first[sdist.name]
    }
    inside = {name.removeprefix("steptime/shipped/") for name in names(wheel)}
    about = {name for name in inside if ".dist-info/" in name}
    assert inside - about == {path.removeprefix("plugins/") for path in shipped()}
    told = {name.partition("/licenses/")[2] for name in about if "/licenses/" in name}
    assert told == {"LICENSE", "NOTICE", *licences()}
    sources = {name.partition("/")[2] for name in names(sdist)}
    assert sources - set(shipped()) - set(licences()) == {
        *("PKG-INFO", "pyproject.toml", ".gitignore", "README.md", "LICENSE", "NOTICE", *PAGES)
    }


@pytest.mark.service
def test_each_commit_has_a_version_that_pip_takes_for_a_newer_one(tmp_path):
    """In a clone without tags, with the tag of a release, after it, and from an sdist without git."""
    source = tmp_path / "source"
    build(source, tmp_path / "without-git", umask=0o022, options=("--sdist",))

    def git(*arguments):
        author = ("-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false")
        command = ["git", *author, *arguments]
        subprocess.run(command, cwd=source, check=True, capture_output=True)

    def built(*options, of=source):
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        subprocess.run([UV, "build", "--quiet", *options, "--out-dir", str(out), str(of)], check=True)
        [wheel] = out.glob("*.whl")
        return Version(wheel.name.split("-")[1])

    git("init", "--quiet")
    git("add", ".")
    versions = []
    for tags in ((), (), ("v0.1.0",), ()):
        git("commit", "--quiet", "--allow-empty", "--message", "one more")
        for tag in tags:
            git("tag", tag)
        versions.append(built("--wheel"))
    assert versions == sorted(set(versions))
    assert str(versions[2]) == "0.1.0"
    assert all(version.is_devrelease and version.local for version in (*versions[:2], versions[3]))
    subprocess.run([UV, "build", "--quiet", "--sdist", "--out-dir", str(tmp_path), str(source)], check=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    assert built("--wheel", of=sdist) == versions[3]


def names(packed):
    if packed.suffix == ".whl":
        return zipfile.ZipFile(packed).namelist()
    with tarfile.open(packed) as archive:
        return archive.getnames()


def licences():
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / "licenses").iterdir()]
