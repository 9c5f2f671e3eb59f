"""Staging a run as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from steptime.errors import UserError
from steptime.settings import shipped
from steptime.staging.scripts import script_files
from steptime.staging.stage import stage


@pytest.fixture
def run(make_result):
    """Return a planned run of a tiny Llama."""
    return make_result().run


async def test_a_run_gets_the_shipped_trainer_and_an_environment_of_the_shipped_lock(
    cluster, config, run, monkeypatch
):
    """test_venv builds the environment itself; here only the request for it is checked."""

    async def stage_venv(_, asked_by, *, lock, bootstrap, report):
        assert asked_by == config
        assert "torch==" in lock.read_text()
        assert bootstrap.read_text().startswith("uv==")
        report("building")
        return "/venv/bin/python", "a" * 64

    monkeypatch.setattr("steptime.staging.stage.stage_venv", stage_venv)
    lines = []
    staged = await stage(cluster, config, run, lines.append)
    assert (staged.python, staged.venv_lock_sha256, staged.image) == ("/venv/bin/python", "a" * 64, None)
    copied, original = Path(staged.trainer_path, "trainer"), shipped("trainer")
    assert (copied / "__main__.py").read_bytes() == (original / "__main__.py").read_bytes()
    assert staged.trainer_sha256.startswith(Path(staged.trainer_path).name)
    assert lines[-1] == "building"


async def test_a_run_that_needs_a_container_is_refused_before_anything_is_copied(cluster, config, run):
    recipe = run.recipe.model_copy(update={"image": "nvcr.io/nvidia/nemo:25.04.01"})
    with pytest.raises(
        UserError, match=r"runs in the image nvcr\.io/nvidia/nemo:25\.04\.01, and cluster here runs no images"
    ):
        await stage(cluster, config, run.model_copy(update={"recipe": recipe}), print)
    assert not Path(config.root).exists()


def test_the_scripts_need_nothing_but_python_and_what_is_copied_with_them(tmp_path):
    copied = script_files()
    for name, content in copied.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    alone = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2])"
    for name in copied:
        subprocess.run([sys.executable, "-I", "-S", "-c", alone, tmp_path, tmp_path / name], check=True)
