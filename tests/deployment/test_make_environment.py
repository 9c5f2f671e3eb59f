"""`make setup` on machines with other Pythons: which one makes the environment, and the error if none can.

The machine is a folder of programs that stand in for Python and uv: they write down how they were called.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from called import captured

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/bash
# Python $version, as far as a bootstrap looks at it.
echo "$name $*" >>"$log"
case "$*" in
  --version) echo "Python $version" ;;
  "-c import ensurepip, venv") exit $no_venv ;;
  "-m pip --version") exit $no_pip ;;
  -c*) exit $unfit ;;
  "-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    ;;
  *"install"*"--target "*) mkdir -p "$7/bin" && cp "$uv" "$7/bin/uv" ;;
  *install*) cp "$uv" "${0%/*}/uv" ;;
esac
"""
UV = """#!/bin/bash
# Takes `uv venv --quiet --allow-existing --python ASKED FOLDER`, and whatever else.
echo "uv $*" >>"$log"
[ "$1" = venv ] || exit 0
case " $found " in
  *" ${5##*/} "*) mkdir -p "$6/bin" && cp "$any_python" "$6/bin/python" && cp "$0" "$6/bin/uv" ;;
  *) echo "error: no interpreter for $5" >&2; exit 2 ;;
esac
"""


class Machine(NamedTuple):
    """The outcome of `make_environment.sh` on a machine."""

    exit_code: int
    stderr: str
    calls: list[str]
    """Every call of Python and uv."""

    @property
    def made_with(self):
        """Return the Pythons with which uv was asked to make the environment, in order."""
        return [call.split("--python ")[1].split()[0] for call in self.calls if call.startswith("uv venv")]


def setup(
    tmp_path,
    pythons,
    *,
    uv_finds,
    arguments="",
    without_venv=(),
    without_pip=(),
):
    """Run the script on a machine that has these Pythons, by the name of their command."""
    programs, checkout, log = tmp_path / "bin", tmp_path / "checkout", tmp_path / "calls"
    programs.mkdir()
    checkout.mkdir()
    shutil.copy(ROOT / "make_environment.sh", checkout)
    for name in ("bash", "cat", "cp", "dirname", "basename", "mkdir", "env"):
        (programs / name).symlink_to(shutil.which(name) or name)
    uv = tmp_path / "uv"
    any_python = tmp_path / "any_python"

    def program(path, text, **values):
        for name, value in values.items():
            text = text.replace(f"${name}", value)
        path.write_text(text)
        path.chmod(0o755)

    for name, version in {**pythons, "any_python": "3.11.9"}.items():
        fits = tuple(map(int, version.split(".")[:2])) in ((3, 11), (3, 12), (3, 13))
        program(
            any_python if name == "any_python" else programs / name,
            PYTHON,
            version=version,
            name=name,
            log=str(log),
            uv=str(uv),
            no_venv="1" if name in without_venv else "0",
            no_pip="1" if name in without_pip else "0",
            unfit="0" if fits else "1",
        )
    program(uv, UV, log=str(log), found=uv_finds, any_python=str(any_python))
    done = captured(
        ["./make_environment.sh", ".venv", *([arguments] if arguments else [])],
        cwd=checkout,
        env={"PATH": str(programs), "HOME": str(tmp_path)},
    )
    return Machine(done.returncode, done.stderr, log.read_text().splitlines() if log.exists() else [])


def test_a_machine_with_311_uses_it(tmp_path):
    machine = setup(tmp_path, {"python3": "3.12.3", "python3.11": "3.11.9"}, uv_finds="python3.11")
    assert (machine.exit_code, machine.stderr) == (0, "")
    assert machine.made_with == [str(tmp_path / "bin" / "python3.11")]
    *_, locked, ours = machine.calls
    assert locked.startswith("uv pip sync")
    assert ours.endswith("--editable .")


def test_a_debian_without_python3_pip_has_uv_in_an_environment_of_its_own(tmp_path):
    machine = setup(tmp_path, {"python3.11": "3.11.9"}, uv_finds="python3.11", without_pip=("python3.11",))
    assert (machine.exit_code, machine.stderr) == (0, "")
    assert "python3.11 -m venv build/bootstrap" in machine.calls
    assert machine.made_with == [str(tmp_path / "bin" / "python3.11")]


def test_a_newcomers_machine_has_312_and_uv_fetches_311(tmp_path):
    """The machine is an Ubuntu 24.04 with python3-venv."""
    machine = setup(tmp_path, {"python3": "3.12.3"}, uv_finds="3.11")
    assert (machine.exit_code, machine.stderr) == (0, "")
    assert machine.made_with == ["3.11"]


@pytest.mark.parametrize("version", ["3.12.3", "3.13.5"])
def test_where_311_cannot_be_fetched_airflow_runs_with_what_is_there(tmp_path, version):
    machine = setup(tmp_path, {"python3": version}, uv_finds="python3")
    assert machine.exit_code == 0
    assert machine.made_with == ["3.11", "python3"]
    assert machine.stderr == (
        f"setup: Python 3.11 is not here and cannot be fetched: Airflow runs with Python {version}. "
        "The trainer's packages are locked for 3.11: to train on this machine install a python3.11\n"
    )


def test_a_debian_without_pip_and_venv_is_told(tmp_path):
    without = {"without_venv": ("python3",), "without_pip": ("python3",)}
    machine = setup(tmp_path, {"python3": "3.13.5"}, uv_finds="3.11", **without)
    assert machine.exit_code == 1
    assert "on Debian and Ubuntu the package python3-venv" in machine.stderr


def test_the_python_that_is_asked_for_is_taken(tmp_path):
    pythons = {"python3.11": "3.11.9", "python3.12": "3.12.3"}
    machine = setup(tmp_path, pythons, uv_finds="python3.11 python3.12", arguments="python3.12")
    assert (machine.exit_code, machine.made_with) == (0, ["python3.12"])


def test_an_environment_that_is_there_is_kept(tmp_path):
    setup(tmp_path, {"python3.11": "3.11.9"}, uv_finds="python3.11")
    (tmp_path / "calls").unlink()
    again = subprocess.run(
        ["./make_environment.sh", ".venv"],
        cwd=tmp_path / "checkout",
        env={"PATH": str(tmp_path / "bin"), "HOME": os.devnull},
        check=False,
    )
    assert again.returncode == 0
    called = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[1:3] for call in called] == [["pip", "sync"], ["pip", "install"]]
