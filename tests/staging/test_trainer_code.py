"""Staging the trainer's code: named by its content, complete, and only once."""

import asyncio
import shutil
from pathlib import Path

import pytest

from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure
from steptime.staging.stage import stage_trainer


@pytest.fixture
def source(tmp_path):
    """Return a small trainer package, with files that Python and editors leave."""
    package = tmp_path / "source" / "trainer"
    for name in (
        "__init__.py",
        "families/llama.py",
        "__pycache__/x.pyc",
        ".idea/x",
        "families/.llama.py.swp",
    ):
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"NAME = {name!r}\n")
    return package


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def stage(cluster, config, source):
    lines = []
    folder, sha256 = await stage_trainer(cluster, config, source=source, report=lines.append)
    return Path(folder), sha256, lines


async def test_the_package_arrives_without_what_python_and_editors_leave(cluster, config, source):
    folder, sha256, _ = await stage(cluster, config, source)
    assert folder == Path(config.root, "trainer", sha256[:16])
    assert files_below(folder) == {"trainer/__init__.py", "trainer/families/llama.py"}


@pytest.mark.parametrize("change", ["content", "name", "file"])
async def test_changed_content_goes_to_a_folder_of_its_own(cluster, config, source, change):
    before, _, _ = await stage(cluster, config, source)
    if change == "content":
        (source / "__init__.py").write_text("NAME = 'changed'\n")
    elif change == "name":
        (source / "__init__.py").rename(source / "init.py")
    else:
        (source / "more.py").touch()
    after, _, _ = await stage(cluster, config, source)
    assert after != before
    assert (before / "trainer" / "__init__.py").read_text() == "NAME = '__init__.py'\n"


async def test_those_who_stage_at_once_agree_and_leave_nothing_behind(cluster, config, source):
    staged = await asyncio.gather(*(stage(cluster, config, source) for _ in range(4)))
    assert len({folder for folder, _, _ in staged}) == 1
    assert [path.name for path in Path(config.root, "trainer").iterdir()] == [staged[0][0].name]


async def test_a_copy_that_breaks_off_is_not_taken_for_the_whole(cluster, config, source, monkeypatch):
    write = LocalCluster.write

    async def fail_at_the_second(self, path, data):
        if path.endswith("llama.py"):
            raise SystemFailure("no space left")
        await write(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalCluster, "write", fail_at_the_second)
        with pytest.raises(SystemFailure, match="no space left"):
            await stage(cluster, config, source)
    assert not list(Path(config.root, "trainer").iterdir())
    folder, _, _ = await stage(cluster, config, source)
    assert len(files_below(folder)) == 2


@pytest.mark.parametrize("change", ["edited", "removed"])
async def test_a_copy_that_somebody_changed_is_refused(cluster, config, source, change):
    folder, _, _ = await stage(cluster, config, source)
    if change == "edited":
        (folder / "trainer" / "__init__.py").write_text("NAME = 'mine'\n")
    else:
        (folder / "trainer" / "__init__.py").unlink()
    with pytest.raises(SystemFailure, match=rf"{folder} on here was changed: remove that folder"):
        await stage(cluster, config, source)


async def test_a_copy_that_cannot_be_moved_to_its_place_is_an_error(cluster, config, source):
    folder, _, _ = await stage(cluster, config, source)
    shutil.rmtree(folder)
    folder.write_text("a file in its place")
    with pytest.raises(SystemFailure, match=f"could not be copied to {folder} on here: mv: cannot overwrite"):
        await stage(cluster, config, source)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
