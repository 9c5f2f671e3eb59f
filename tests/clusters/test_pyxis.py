"""The environment of a rank under pyxis, with a stand-in for srun that does what pyxis' source says."""

import json
import os
from pathlib import Path
from unittest import mock

import pytest
from called import captured
from staged import staged_files

from steptime.clusters.jobscript import job_spec
from steptime.clusters.slurm.config import SlurmConfig
from trainer.launch import read_launch

pytestmark = pytest.mark.long

SRUN = Path(__file__).parents[1] / "stand_ins" / "srun"
OF_NGC = "PYTORCH_VERSION=2.7.0\nNEMO=25.04\n"
"""Variables of an image: pyxis and enroot's hook recognise a PyTorch image by the first."""
PYTHON = """#!/bin/sh
exec {python} -I -c 'import json, os, pathlib
pathlib.Path("rank-" + os.environ["SLURM_PROCID"]).write_text(json.dumps(dict(os.environ)))'
"""


class Cluster:
    """A machine whose srun is the stand-in, and an image on it."""

    def __init__(self, folder):
        self.work = folder / "work"
        self.tools = folder / "tools"
        self.work.mkdir()
        self.tools.mkdir()
        (self.tools / "srun").symlink_to(SRUN)
        python = self.tools / "python"
        python.write_text(PYTHON.format(python="/usr/bin/env python3"))
        python.chmod(0o755)
        self.path = f"{self.tools}:{os.environ['PATH']}"

    def ranks(self, run, image, submitter):
        """Return the environment of every rank of the run's job."""
        file = self.work / "nemo.sqsh"
        file.write_text(f"PATH={self.path}\n{image}")
        site = {"name": "here", "kind": "slurm", "gpu_type": "h100", "connection": "here"}
        more = {"container": "pyxis", "permitted_variables": ["LD_LIBRARY_PATH"]}
        config = SlurmConfig.model_validate({**site, "work_dir": str(self.work), **more})
        staged = staged_files(trainer_path=self.work, image_path=str(file))
        spec = job_spec(run, staged, config, identity="x", started=1_790_000_000)
        folder = Path(spec.directory)
        folder.mkdir(parents=True)
        of_slurm = {"SLURMD_NODENAME": "localhost", "SLURM_JOB_ID": "12005", "SLURM_NTASKS": str(spec.slots)}
        done = captured(["/bin/bash", "-c", spec.script], env={"PATH": self.path, **of_slurm, **submitter})
        assert done.returncode == 0, done.stderr
        return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(spec.slots)]


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def launch(environment):
    """Return how the trainer believes it was started; variables that it sets are restored."""
    with mock.patch.dict(os.environ, environment, clear=True):
        return read_launch()


@pytest.mark.parametrize("hooks", [False, True], ids=["pyxis alone", "with the hooks of enroot"])
def test_ranks_in_an_image_of_pytorch_are_those_of_srun(make_result, cluster, hooks):
    """For a PyTorch image pyxis sets RANK and LOCAL_RANK as torchrun does, and the hook WORLD_SIZE."""
    if hooks:
        (cluster.tools / "hooks").touch()
    found = cluster.ranks(make_result(gpus=2).run, OF_NGC, {})
    for rank, environment in enumerate(found):
        assert environment["RANK"] == str(rank), "the stand-in sets it"
        assert ("WORLD_SIZE" in environment) == hooks
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("localhost", "20005")
        told = launch(environment)
        assert (told.rank, told.world_size, told.local_world_size) == (rank, 2, 2)
        assert told.by_launcher


def test_what_names_files_of_the_login_node_stays_outside(make_result, cluster):
    """Slurm passes on the submitter's shell variables, and pyxis those that the image does not set."""
    of_the_shell = {
        "LD_LIBRARY_PATH": "/login/lib",
        "PYTHONHOME": "/login/python",
        "PYTHONPATH": "/login/packages",
        "NCCL_SOCKET_IFNAME": "ib0",
    }
    run = make_result(gpus=1).run
    (bare,) = cluster.ranks(run, OF_NGC, of_the_shell)
    assert not {"LD_LIBRARY_PATH", "PYTHONHOME"} & bare.keys()
    assert "/login" not in bare["PYTHONPATH"]
    assert (bare["NCCL_SOCKET_IFNAME"], bare["NEMO"]) == ("ib0", "25.04")


def test_what_an_image_or_a_run_sets_itself_is_kept(make_result, cluster):
    run = make_result(gpus=1).run
    (of_image,) = cluster.ranks(run, f"{OF_NGC}LD_LIBRARY_PATH=/image/lib\n", {"LD_LIBRARY_PATH": "/login"})
    assert of_image["LD_LIBRARY_PATH"] == "/image/lib"
    own = run.model_copy(update={"environment": {"LD_LIBRARY_PATH": "/run/lib"}, "experiment": "own"})
    (of_run,) = cluster.ranks(own, f"{OF_NGC}LD_LIBRARY_PATH=/image/lib\n", {"LD_LIBRARY_PATH": "/login"})
    assert of_run["LD_LIBRARY_PATH"] == "/run/lib"
