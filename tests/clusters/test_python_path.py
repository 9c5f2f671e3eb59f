"""The order in which a rank in an image finds packages: the trainer's folder, then the image's own path."""

import os
from pathlib import Path

import pytest
from called import captured
from staged import staged_files

from steptime.clusters.jobscript import job_spec
from steptime.clusters.local.cluster import LocalConfig
from steptime.clusters.runai.config import RunaiConfig
from steptime.clusters.slurm.config import SlurmConfig

SRUN = """#!/bin/sh
# As pyxis does it: a variable of the image replaces the job's, but for those that --container-env names.
image=$OF_THE_IMAGE
case " $* " in *" --container-image="*) ;; *) image= ;; esac
while [ "${1#--}" != "$1" ]; do
  case ${1#*=}, in *,PYTHONPATH,*) image= ;; esac
  shift
done
test -z "$image" || export PYTHONPATH="$image"
exec "$@"
"""
APPTAINER = """#!/bin/sh
# An image from a registry sets its variables where the job has not.
shift
while [ "${1#--}" != "$1" ]; do shift; done
shift
export PYTHONPATH="${PYTHONPATH:-$OF_THE_IMAGE}"
exec "$@"
"""
PYTHON = """#!/bin/sh
printf '%s' "$PYTHONPATH"
"""
SITE = {"name": "here", "gpu_type": "h100", "connection": "here"}


def clusters(folder):
    site = {**SITE, "work_dir": folder}
    pvcs = [{"claim": "workspace", "path": folder}]
    return {
        "pyxis": SlurmConfig.model_validate({**site, "kind": "slurm", "container": "pyxis"}),
        "apptainer": SlurmConfig.model_validate({**site, "kind": "slurm", "container": "apptainer"}),
        "bwrap": LocalConfig(name="here", kind="local", gpu_type="cpu", work_dir=folder, container="bwrap"),
        "runai": RunaiConfig.model_validate({**site, "kind": "runai", "image": "any", "pvcs": pvcs}),
    }


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("of_the_image", ["/opt/NeMo:/opt/Megatron-LM", ""], ids=["set", "not set"])
@pytest.mark.parametrize("kind", ["pyxis", "apptainer", "bwrap", "runai"])
def test_an_image_keeps_its_own_python_path(
    make_result,
    tmp_path,
    kind,
    of_the_image,
    request,
):
    """NeMo's images find their packages by PYTHONPATH; the login shell's PYTHONPATH stays out of the job."""
    if kind == "bwrap":
        request.getfixturevalue("bwrap")
    work, tools = tmp_path / "work", tmp_path / "work" / "tools"
    tools.mkdir(parents=True)
    for name, text in (("srun", SRUN), ("apptainer", APPTAINER), ("python", PYTHON)):
        program(tools / name, text)
    path = f"{tools}:{os.environ['PATH']}"
    staged = staged_files(
        trainer_path="/shared/trainer/it's $(1)",
        image="nvcr.io/nvidia/nemo:25.04.01",
        image_path="/",
        image_environment={"PATH": path, **({"PYTHONPATH": of_the_image} if of_the_image else {})},
    )
    config = clusters(str(work))[kind]
    spec = job_spec(make_result(gpus=2).run, staged, config, identity="x", started=1_790_000_000)
    Path(spec.directory).mkdir(parents=True)
    outside = {"pyxis": "/login", "apptainer": "/login", "bwrap": "", "runai": of_the_image}[kind]
    done = captured(
        ["/bin/bash", "-c", spec.script],
        env={
            "PATH": path,
            "SLURMD_NODENAME": "localhost",
            "SLURM_JOB_ID": "1",
            "OF_THE_IMAGE": of_the_image,
            **({"PYTHONPATH": outside} if outside else {}),
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ":".join(filter(None, (staged.trainer_path, of_the_image)))
