"""A job script of each form, as `steptime plan … --show-script` writes it, kept in tests/golden for review.

After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/clusters/test_golden_scripts.py
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from called import captured
from kept import GOLDEN, assert_kept
from typer.testing import CliRunner

from steptime import settings
from steptime.cli import app

pytestmark = pytest.mark.slow

OF_POD = Path(settings.__file__).parent / "clusters" / "runai" / "start.sh"
LLAMA = "llama3.1-25.04 --size 8b --dtype bf16"
REVIEWED = {
    "llama3.1-25.04-h100-performance": f"{LLAMA} --gpus 8 --cluster h100",
    "llama3.1-25.04-h100-profile": f"{LLAMA} --gpus 8 --cluster h100 --profile --gpu-metrics",
    "llama3.1-25.04-h100-nccl_trace": f"{LLAMA} --gpus 8 --cluster h100 --nccl-trace",
    "llama3.1-25.04-h100-checkpoint_load": (
        f"{LLAMA} --gpus 16 --cluster h100 --load-checkpoint /archive/checkpoints/saved"
    ),
    "llama3.1-25.04-apptainer-performance": f"{LLAMA} --gpus 8 --cluster apptainer",
    "llama3.1-25.04-bwrap-performance": f"{LLAMA} --gpus 8 --cluster bwrap",
    # NeMo 1
    "nemotron4-340b-24.11-h100-performance": (
        "nemotron4-340b-24.11 --size 340b --dtype bf16 --gpus 128 --cluster h100"
    ),
    "nemotron4-340b-25.12-gb200-checkpoint_save": (
        "nemotron4-340b-25.12 --size 340b --dtype bf16 --gpus 128 --cluster gb200 --save-checkpoint"
    ),
    # recipes of Megatron-Bridge by name
    "deepseek-v3-26.04-gb300-performance": (
        "deepseek-v3-26.04 --size 671b --dtype fp8_mx --gpus 256 --cluster gb300"
    ),
    "llama3.1-26.06-gb200-profile": (
        "llama3.1-26.06 --size 405b --dtype fp8_cs --gpus 256 --cluster gb200 --profile --gpu-metrics"
    ),
    "nemotron3-26.08-gb200-performance": (
        "nemotron3-26.08 --size lightning --dtype fp8_mx --gpus 8 --cluster gb200"
    ),
}
"""The arguments of `steptime plan` by the name of the script kept in tests/golden."""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Use the shipped workloads, and Slurm clusters with the documents' GPUs."""
    folder = tmp_path_factory.mktemp("golden") / "config"
    shutil.copytree(settings.shipped("config"), folder)
    shutil.copytree(GOLDEN / "clusters", folder / "clusters", dirs_exist_ok=True)
    of_pyxis = (GOLDEN / "clusters" / "h100.yaml").read_text()
    for container in ("apptainer", "bwrap"):
        text = of_pyxis.replace("name: h100", f"name: {container}").replace("pyxis\n", f"{container}\n")
        (folder / "clusters" / f"{container}.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPTIME_CONFIG_DIR", str(folder))
        yield


@pytest.mark.parametrize("name", REVIEWED)
def test_scripts_are_as_reviewed(config, name):
    """The time in a script's names is replaced by a placeholder."""
    arguments = f"plan {REVIEWED[name]} --scaling weak --show-script --format json"
    shown = CliRunner().invoke(app, arguments.split())
    assert shown.exit_code == 0, shown.exception
    (run,) = json.loads(shown.stdout)["runs"]
    script = re.sub(r"_1\d{9}-", "_TIMESTAMP-", run["script"])
    assert_kept(f"scripts/{name}.sh", script)


# SC2016 is excluded because such expressions are data or for the ranks, SC2064 because expansion at that
# point is meant, and SC2317 because traps call the "unreachable" code.
@pytest.mark.parametrize(
    "command", [("bash", "-n"), ("shellcheck", "--exclude=SC2016,SC2064,SC2317")], ids=lambda words: words[0]
)
def test_bash_and_shellcheck_find_nothing_in_them(command):
    program = shutil.which(command[0])
    if program is None:
        pytest.fail(f"{command[0]} is missing: apt-get install --yes {command[0]}")
    of_others = (Path(__file__).parent / "golden").iterdir()
    for script in (*(GOLDEN / "scripts").iterdir(), *of_others, OF_POD):
        checked = captured([program, *command[1:], script])
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), script.name
