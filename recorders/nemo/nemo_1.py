"""What the NeMo 1 release would train with: runs its job's command line, and composes its YAML with Hydra.

The release's `launch.sh` hands a command line to `srun`. It runs here as the container would run it, with
stand-ins for Python, `nsys` and the management library of NVIDIA's driver, which says that it has an H100.
As a program of the trainer's environment, this file composes the settings.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OF_THE_JOB = re.compile(r"(CUDA|HUGGINGFACE|HYDRA|NCCL_NVLS|NVTE|PYTORCH|TORCH|TRANSFORMERS)_")
"""Variables that libraries read in the job. The scripts export many more, for each other."""

_PYTHON = r"""#!/bin/bash
# In the place of the container's Python. The launcher's own program answers the questions to it.
if [[ "$1" == */conditional_cfgs.py ]]; then
    shift
    collections=$STEPTIME_LAUNCHER/launcher_scripts/nemo_launcher/collections
    exec "$STEPTIME_PYTHON" -W ignore "$collections/conditional_cfgs.py" "$@"
fi
printf '%s\0' "$@" > "$STEPTIME_NOTES/arguments"
env -0 > "$STEPTIME_NOTES/environment"
"""

_NSYS = r"""#!/bin/bash
# In the place of the profiler: goes on with the program that it would profile.
while [[ $# -gt 0 && "$1" != python3 ]]; do shift; done
[[ $# -eq 0 ]] || exec "$@"
"""

_PYNVML = """
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetCudaComputeCapability(handle): return 9, 0
"""


def container_run(start: Mapping[str, Any], python: str, launcher: Path, work: Path) -> dict[str, Any]:
    """What the command line starts that launch.sh gives to `srun`, and the `options` of `srun`.

    Args:
        start: What launch.sh started: `srun`, its options, and the job's command line.
        python: The trainer environment's interpreter.
        launcher: NeMo-Framework-Launcher's files.
        work: A folder for the stand-ins.
    """
    programs, modules, notes = (work / name for name in ("programs", "modules", "notes"))
    for folder in (programs, modules, notes):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("python3", _PYTHON), ("nsys", _NSYS)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (modules / "pynvml.py").write_text(_PYNVML)
    (notes / "arguments").unlink(missing_ok=True)
    _, *options, _, _, command = start["arguments"]
    environment = {
        **start["environment"],
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(modules),
        "STEPTIME_PYTHON": python,
        "STEPTIME_LAUNCHER": str(launcher),
        "STEPTIME_NOTES": str(notes),
    }
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if not (notes / "arguments").exists():
        raise ChildProcessError(f"the job's command line did not start Python: {done.stderr[-2000:]}")
    arguments, variables = ((notes / name).read_bytes() for name in ("arguments", "environment"))
    return {
        "arguments": ["python3", *split(arguments)],
        "environment": dict(each.split("=", 1) for each in split(variables)),
        "options": options,
    }


def split(noted: bytes) -> list[str]:
    """Return the texts that a stand-in wrote, each terminated by a zero byte."""
    return noted.decode().removesuffix("\0").split("\0")


def nemo_1_settings(
    python: str, folder: Path, runs: Mapping[Any, Mapping[str, Any]]
) -> dict[Any, dict[str, Any]]:
    """Return the flat settings of each run in the container, whose YAML files are in `folder`."""
    done = subprocess.run(
        [python, "-W", "ignore", __file__, str(folder)],
        input=json.dumps([_hydra_arguments(run["arguments"]) for run in runs.values()]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {
        key: {f"nemo1.{name}": value for name, value in composed.items()}
        | {f"environment.{name}": text for name, text in run["environment"].items() if OF_THE_JOB.match(name)}
        | {
            "launch.mpi": run["environment"]["SLURM_MPI_TYPE"],
            "launch.ranks_per_numa_node": None,
            "launch.vboost": False,
            "launch.srun_args": run["options"],
        }
        for (key, run), composed in zip(runs.items(), json.loads(done.stdout), strict=True)
    }


def _hydra_arguments(arguments: list[str]) -> dict[str, Any]:
    """Return the name of the YAML file, and the overrides of its values."""
    options = [each for each in arguments if each.startswith("--config-name=")]
    (option,) = options
    return {
        "name": option.partition("=")[2],
        "overrides": [each for each in arguments if "=" in each and not each.startswith("--")],
    }


def compose(folder: str, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each question, the flattened YAML file of that name with its overrides."""
    import hydra
    from omegaconf import OmegaConf

    answers = []
    with hydra.initialize_config_dir(config_dir=folder, version_base=None):
        for question in questions:
            composed = hydra.compose(question["name"], overrides=question["overrides"])
            answers.append(dict(_leaves("", OmegaConf.to_container(composed))))
    return answers


def _leaves(prefix: str, value: Any) -> Any:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(f"{prefix}.{name}" if prefix else str(name), each)
    else:
        yield prefix, value


if __name__ == "__main__":
    json.dump(compose(str(Path(sys.argv[1]).resolve()), json.load(sys.stdin)), sys.stdout)
