"""A real image of a real environment, and real containers of bwrap: which files a job sees in them."""

import asyncio
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import squash_venv
from called import captured

from steptime.clusters.config import open_cluster
from steptime.clusters.containers import ContainerSetup, Mount, start_in_container
from steptime.clusters.local.cluster import LocalCluster
from steptime.clusters.slurm.config import SlurmConfig
from steptime.recipes.planning import parse_request, plan
from steptime.staging.stage import stage_image

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
def config(config):
    """Return a local cluster with bwrap."""
    for program, package in (("bwrap", "bubblewrap"), ("mksquashfs", "squashfs-tools")):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: apt-get install --yes {package}")
    return config.model_copy(update={"container": "bwrap"})


async def staged_image(cluster, config, said, *, options=()):
    """Stage an image that somebody has put there: this Python, its standard library and their libraries."""
    file = Path(config.root, "images", "steptime+trainer+cpu.sqsh")
    if not file.exists():
        file.parent.mkdir(parents=True)
        venv = Path(config.root, "venvs", "empty")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        subprocess.run([sys.executable, squash_venv.__file__, venv, file], check=True)
    return await stage_image(
        cluster,
        config,
        "steptime/trainer:cpu",
        mounts=(Mount(config.root, writable=False),),
        job_options=options,
        report=said.append,
    )


@pytest.mark.service
async def test_a_container_has_the_images_files_and_the_jobs_folders_and_nothing_else_of_the_machine(
    config, tmp_path
):
    image = await staged_image(LocalCluster(config), config, [])
    assert image.digest is None
    assert image.environment["PATH"].startswith("/opt/trainer/bin:")
    directory = Path(config.root, "experiments", "x")
    directory.mkdir(parents=True)
    hidden = tmp_path / "hidden"
    hidden.touch()
    started = start_in_container(
        "bwrap",
        ("python", "-I", "-c", LOOKS_AROUND, str(hidden), "/var/lib/dpkg", str(Path(config.root, "venvs"))),
        ContainerSetup(
            image=image.path,
            mounts=(Mount(config.root, writable=False), Mount(str(directory), writable=True)),
            directory=str(directory),
            variables=("VARIABLE",),
            image_environment={**image.environment, "VARIABLE": "the image's"},
        ),
    )
    assert started.srun_options == ()
    seen = captured(started.command, env={"PATH": "/usr/bin:/bin", "VARIABLE": "the job's; $(touch canary)"})
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


@pytest.mark.service
async def test_for_pyxis_the_file_itself_is_the_image(config):
    """Only bwrap needs the unpacked files."""
    on_pyxis = config.model_copy(update={"container": "pyxis"})
    image = await staged_image(LocalCluster(on_pyxis), on_pyxis, [])
    assert (image.path, image.environment) == (
        f"{config.root}/images/steptime+trainer+cpu.sqsh",
        {},
    )
    unsquashfs = ["unsquashfs", "-cat", image.path, "etc/environment"]
    listed = subprocess.run(unsquashfs, capture_output=True, check=True)
    assert b"PATH=/opt/trainer/bin:" in listed.stdout
    assert not Path(config.root, "images", "unpacked").exists()


@pytest.mark.slurm
async def test_a_slurm_whose_login_node_may_not_import_does_it_in_jobs(mini_slurm, config):
    """Jobs record the image's file and unpack it, and the next staging finds both."""
    on_slurm = SlurmConfig.model_validate(
        {
            "name": "mini",
            "kind": "slurm",
            "gpu_type": "cpu",
            "connection": "mini_slurm",
            "container": "bwrap",
            "work_dir": config.root,
            "python": config.python,
            "import_in_job": True,
            "import_partition": "batch",
            "extra_options": ["--qos=normal", "--constraint=no-such-node"],
            "poll_interval_s": 0.2,
        }
    )
    said = []
    async with open_cluster(on_slurm, mini_slurm.connections) as cluster:
        options = on_slurm.staging_job_options(
            plan(parse_request({"workload": "llama3.1-25.04", "gpu_type": "cpu"})).runs[0]
        )
        image = await staged_image(cluster, on_slurm, said, options=options)
        assert (Path(image.path) / "opt/trainer/pyvenv.cfg").is_file()
        names = [line.split()[2] for line in said if line.startswith("in job ")]
        wanted = sorted(f"{name}|COMPLETED|batch|normal|1" for name in names)
        query = ("sacct", "-nXP", "--name", ",".join(names), "-o", "JobName,State,Partition,QOS,NCPUS")
        deadline = time.monotonic() + 60
        while sorted(mini_slurm.command(*query).split()) != wanted:  # the accounting lags a moment
            assert time.monotonic() < deadline, mini_slurm.command(*query)
            await asyncio.sleep(0.2)
        assert len(names) == 2
        assert await staged_image(cluster, on_slurm, said, options=options) == image
