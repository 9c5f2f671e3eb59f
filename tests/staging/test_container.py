"""A real image of a real environment, and real containers of bwrap: what a job sees in them."""

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.clusters.containers import in_container
from steptime.clusters.local import Config, LocalCluster
from steptime.staging.image import StagedImage, stage_image

LOOKS_AROUND = """
import json, os, pathlib, ssl, sys
def written(path):
    try:
        pathlib.Path(path).write_text("")
    except OSError as error:
        return type(error).__name__
    return "written"
print(json.dumps({
    "prefix": sys.prefix,
    "executable": sys.executable,
    "directory": os.getcwd(),
    "home": os.environ["HOME"],
    "path": os.environ["PATH"],
    "variable": os.environ["VARIABLE"],
    "host's": [path for path in sys.argv[1:] if os.path.exists(path)],
    "into the image": written("/usr/x"),
    "into its folder": written("x"),
    "into /tmp": written("/tmp/x"),
    "user": __import__("pwd").getpwuid(os.getuid()).pw_name,
}))
"""


@pytest.fixture
def config(config: Config) -> Config:
    """A local cluster with bwrap."""
    for program, package in (("bwrap", "bubblewrap"), ("mksquashfs", "squashfs-tools")):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: apt-get install --yes {package}")
    return config.model_copy(update={"container": "bwrap"})


async def staged_image(config: Config) -> StagedImage:
    """An image of an empty environment: this Python, its standard library and their libraries."""
    venv = Path(config.root, "venvs", "trainer-0123456789abcdef")
    if not venv.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    return await stage_image(
        LocalCluster(config),
        config,
        "steptime/trainer:cpu",
        venv=str(venv),
        folders=(config.root,),
        report=print,
    )


async def test_a_container_has_the_images_files_and_the_jobs_folders_and_nothing_else_of_the_machine(
    config: Config, tmp_path: Path
) -> None:
    image = await staged_image(config)
    assert image.digest is None
    assert image.environment["PATH"].startswith("/opt/trainer/bin:")
    directory = Path(config.root, "experiments", "x")
    directory.mkdir(parents=True)
    hidden = tmp_path / "hidden"
    hidden.touch()
    started = in_container(
        "bwrap",
        ("python", "-I", "-c", LOOKS_AROUND, str(hidden), "/var/lib/dpkg", str(Path(config.root, "venvs"))),
        image=image.path,
        folders=(config.root,),
        directory=str(directory),
        variables=("VARIABLE",),
        image_environment={**image.environment, "VARIABLE": "the image's"},
    )
    assert started.srun_options == ()
    seen = subprocess.run(
        started.command,
        env={"PATH": "/usr/bin:/bin", "VARIABLE": "the job's; $(touch canary)"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout) == {
        "prefix": "/opt/trainer",
        "executable": "/opt/trainer/bin/python",
        "directory": str(directory),
        "home": "/tmp",  # noqa: S108
        "path": image.environment["PATH"],
        "variable": "the job's; $(touch canary)",
        "host's": [str(Path(config.root, "venvs"))],
        "into the image": "OSError",
        "into its folder": "written",
        "into /tmp": "written",
        "user": pwd.getpwuid(os.getuid()).pw_name,
    }
    assert (directory / "x").exists()
