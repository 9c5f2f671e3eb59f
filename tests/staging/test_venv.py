"""Building the trainer's environment with real pip and uv, in spite of kills, failures and concurrency."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from called import captured

from steptime.errors import SystemFailure, UserError
from steptime.staging.stage import stage_venv

from .reported import Reported, child_running

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]


WAITS_AT_THE_GATE = """
import os, sys, time
def main():
    while os.path.exists({gate!r}):
        time.sleep(0.02)
    os.execv({uv!r}, [{uv!r}, *sys.argv[1:]])
"""


class Staging(Reported):
    """One call of `stage_venv`, with what it reports."""

    def __init__(self, cluster, config, lock, bootstrap):
        super().__init__()
        self._cluster, self._config, self._lock, self._bootstrap = cluster, config, lock, bootstrap

    def by(self, python):
        """Set another Python to build it."""
        self._config = self._config.model_copy(update={"python": str(python)})
        return self

    async def __call__(self):
        python, _ = await stage_venv(
            self._cluster, self._config, lock=self._lock, bootstrap=self._bootstrap, report=self.lines.append
        )
        return Path(python)


@pytest.fixture
def new_staging(index, cluster, config, lock, bootstrap):
    """Return a function that prepares one call of `stage_venv`."""
    return lambda: Staging(cluster, config, lock, bootstrap)


@pytest.fixture
def gate(tmp_path, index, make_wheel, uv):
    """Return a file that stops every build at step 4 while it exists."""
    gate = tmp_path / "gate"
    gate.touch()
    make_wheel("uv", "0.1", WAITS_AT_THE_GATE.format(gate=str(gate), uv=uv), command=True)
    return gate


def venvs(config):
    return {path.name for path in Path(config.root, "venvs").iterdir() if path.is_dir()}


async def test_an_environment_is_built_with_progress_and_then_reused(new_staging):
    first, second = new_staging(), new_staging()
    python = await first()
    target = python.parent.parent
    imports = "import torch, numbers_of_nemo; print(torch.__version__, numbers_of_nemo.__version__)"
    imported = captured([python, "-c", imports], check=True)
    assert imported.stdout == "2.13.0+cpu 1.0\n"
    steps = [line for line in first.lines if line.startswith("[")]
    assert steps == [
        f"[1/5] making {target}",
        "[2/5] installing the installer",
        "[3/5] installing torch==2.13.0+cpu",
        "[4/5] installing the other packages of the lock",
        "[5/5] checking that the packages fit together",
    ]
    assert "PyTorch 2.13.0+cpu" in first.lines
    assert f"{target}/bin/" in (target / "bin" / "uv").read_text()
    scripts = [path for path in (target / "bin").iterdir() if not path.is_symlink()]
    assert not [path for path in (*scripts, target / "pyvenv.cfg") if b".part" in path.read_bytes()]
    built = target.stat()
    assert await second() == python
    assert second.lines == [f"{target} is there already"]
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == (built.st_ino, built.st_mtime_ns)


async def test_a_python_whose_pip_cannot_install_elsewhere_puts_one_into_the_environment(
    new_staging, tmp_path
):
    """A pip older than 22.3 has no option --python."""
    base = Path(sys.executable).resolve()
    subprocess.run([base, "-m", "venv", "--without-pip", tmp_path / "plain"], check=True)
    python = tmp_path / "plain" / "bin" / "python"
    old = next((tmp_path / "plain").glob("lib/python3*/site-packages")) / "pip"
    old.mkdir()
    (old / "__main__.py").write_text("raise SystemExit('no such option: --python')\n")
    staged = await new_staging().by(python)()
    imports = "import torch, numbers_of_nemo, pip; print(torch.__version__)"
    imported = captured([staged, "-c", imports], check=True)
    assert imported.stdout == "2.13.0+cpu\n"


@pytest.mark.parametrize("named", [True, False])
async def test_a_package_may_lack_only_what_the_lock_leaves_out_on_purpose(
    new_staging, make_wheel, lock, named
):
    make_wheel("bridge_of_tests", "1.0", needs="kernels-for-gpus>=2,<3")
    left_out = "# absent: other, kernels-for-gpus\n" if named else ""
    lock.write_text(f"{left_out}{lock.read_text()}bridge_of_tests==1.0\n")
    staging = new_staging()
    if named:
        assert (await staging()).exists()
        assert "these are left out on purpose" in staging.lines
    else:
        with pytest.raises(SystemFailure, match="requires `kernels-for-gpus"):
            await staging()


async def test_two_at_once_build_once_and_the_second_says_that_it_waits(new_staging, gate):
    first, second = new_staging(), new_staging()
    building = asyncio.create_task(first())
    await first.has_said("[4/5]")
    waiting = asyncio.create_task(second())
    await second.has_said("waiting for another build of")
    gate.unlink()
    assert await building == await waiting
    assert second.lines[-1].endswith("is there already")
    assert not any(line.startswith("[") for line in second.lines)


async def test_after_a_killed_build_the_next_one_waits_for_its_installer_and_starts_afresh(
    new_staging, gate, config
):
    killed, again = new_staging(), new_staging()
    building = asyncio.create_task(killed())
    await killed.has_said("[4/5]")
    os.kill(child_running("build_venv.py").pid, signal.SIGKILL)  # the installer goes on alone
    (half,) = Path(config.root, "venvs").glob(".*.part/bin/python")
    (half.parent / "half-installed").touch()
    waiting = asyncio.create_task(again())
    await again.has_said("waiting for another build of")
    gate.unlink()
    python = await waiting
    assert any("removing what an unfinished process left" in line for line in again.lines)
    assert not (python.parent / "half-installed").exists()
    assert venvs(config) == {python.parent.parent.name}
    with pytest.raises(SystemFailure, match="exit code -9"):
        await building


async def test_a_package_that_is_nowhere_is_named_and_nothing_half_built_stays(new_staging, lock, config):
    lock.write_text("torch==9.9.9\n")
    with pytest.raises(SystemFailure, match="a package was not found") as failed:
        await new_staging()()
    assert "No matching distribution found for torch==9.9.9" in str(failed.value)
    assert venvs(config) == set()


async def test_a_cluster_without_the_python_is_named(new_staging):
    staging = new_staging().by(Path("python3.99"))
    with pytest.raises(
        UserError, match=r"cluster here has no python3\.99: .* locked for 3\.11 .*: install Python 3\.11"
    ):
        await staging()


async def test_another_python_has_an_environment_of_its_own(new_staging, tmp_path):
    pythons = set()
    for version in ("3.11.7", "3.11.8", "3.11.7"):
        old = tmp_path / f"python-{version}"
        old.write_text(f'#!/bin/sh\ntest "$1" != -c || echo {version}\n')  # builds nothing
        old.chmod(0o755)
        pythons.add(await new_staging().by(old)())
    assert len(pythons) == 2
