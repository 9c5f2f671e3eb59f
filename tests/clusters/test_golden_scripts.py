"""The job script of every published row in every mode, as `steptime plan … --show-script` writes it.

bash accepts all of them, and shellcheck one of each form. A dozen are kept in tests/golden/scripts/ for
review. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/clusters/test_golden_scripts.py
"""

import csv
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from steptime import settings
from steptime.cli import app
from steptime.recipes.models import Mode
from steptime.recipes.workloads import load_workload

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINT = "/archive/checkpoints/saved"
FLAGS = {
    Mode.PERFORMANCE: [],
    Mode.PROFILE: ["--profile", "--gpu-metrics"],
    Mode.NCCL_TRACE: ["--nccl-trace"],
    Mode.CHECKPOINT_SAVE: ["--save-checkpoint"],
    Mode.CHECKPOINT_LOAD: ["--load-checkpoint", CHECKPOINT],
}


class Row(NamedTuple):
    """A row of the documents' tables, as a user asks for it."""

    workload: str
    size: str
    dtype: str
    gpu_type: str
    scaling: str
    gpus: int

    def has(self, mode: Mode) -> bool:
        """Whether the document has the mode for this row."""
        workload = load_workload(self.workload)
        if mode is Mode.NCCL_TRACE:
            return workload.nccl_trace is not None
        if mode in (Mode.PERFORMANCE, Mode.PROFILE):
            return True
        limits = workload.sizes[self.size.removesuffix("-proxy")].checkpoint
        if limits is None or self.size.endswith("-proxy"):
            return False
        saves = mode is Mode.CHECKPOINT_SAVE
        least = limits.minimum_gpus_to_save if saves else limits.minimum_gpus_to_load
        return self.gpus >= least.get(self.gpu_type, 10**9)


def published() -> list[Row]:
    with (settings.shipped("config") / "references" / "configurations.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        Row(*(row[name] for name in ("recipe", "size", "dtype", "gpu_type", "scaling")), int(row["gpus"]))
        for row in rows
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The shipped workloads, and Slurm clusters of the documents' GPUs."""
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


def show_script(row: Row, mode: Mode, gpus: str, cluster: str = "") -> list[dict[str, Any]]:
    """The runs as `steptime plan` shows them. What depends on the time of day is named instead."""
    shown = CliRunner().invoke(
        app,
        [
            *("plan", row.workload, "--size", row.size, "--dtype", row.dtype, "--gpu-type", row.gpu_type),
            *("--scaling", row.scaling, "--gpus", gpus, "--cluster", cluster or row.gpu_type, *FLAGS[mode]),
            *("--show-script", "--format", "json"),
        ],
    )
    assert shown.exit_code == 0, f"{row} {mode}: {shown.exception}"
    rows: list[dict[str, Any]] = json.loads(shown.stdout)["runs"]
    for run in rows:
        run["script"] = re.sub(r"_1\d{9}-", "_TIMESTAMP-", run["script"])
    return rows


@pytest.fixture(scope="module")
def scripts(config: None) -> dict[tuple[Row, Mode], str]:
    """The scripts of every row and mode that the documents have."""
    alike: dict[tuple[Mode, Row], list[Row]] = defaultdict(list)
    for row in published():
        for mode in Mode:
            if row.has(mode):
                # A checkpoint is loaded at one scale; everything else is planned for all of them at once.
                scale = row.gpus if mode is Mode.CHECKPOINT_LOAD else 0
                alike[mode, row._replace(gpus=scale)].append(row)
    found = {}
    for (mode, _), rows in alike.items():
        gpus = ",".join(str(row.gpus) for row in rows)
        for row, run in zip(rows, show_script(rows[0], mode, gpus), strict=True):
            assert (run["gpus"], run["mode"]) == (row.gpus, mode.value)
            found[row, mode] = run["script"]
    return found


@pytest.mark.exhaustive
def test_every_row_has_its_modes(scripts: dict[tuple[Row, Mode], str]) -> None:
    counts = {mode: sum(of is mode for _, of in scripts) for mode in Mode}
    assert counts[Mode.PERFORMANCE] == counts[Mode.PROFILE] == len(published())
    assert counts[Mode.NCCL_TRACE] == 34 + 7  # Llama 3.1 with its proxies, and Nemotron-H
    assert counts[Mode.CHECKPOINT_SAVE] > counts[Mode.CHECKPOINT_LOAD] > 0


@pytest.mark.exhaustive
def test_bash_and_shellcheck_find_nothing(scripts: dict[tuple[Row, Mode], str], tmp_path: Path) -> None:
    """Bash in any, shellcheck in one of those that differ by names and numbers only."""
    found = list(dict.fromkeys(scripts.values()))
    assert len(found) > 100
    one_of_each = {_without_names_and_numbers(script): script for script in found}
    assert len(one_of_each) > 20
    each = 'for script in "$@"; do bash -n "$script" || exit 1; done'
    _check(["bash", "-c", each, "bash"], found, tmp_path)
    # SC2016: "expressions don't expand in single quotes". They must not: it is data, or for the ranks.
    # SC2064: "expands now rather than when signalled". It must. SC2317: "unreachable", what traps call.
    _check(["shellcheck", "--exclude=SC2016,SC2064,SC2317"], [*one_of_each.values()], tmp_path)


def _without_names_and_numbers(script: str) -> str:
    return re.sub(r"(llama|nemotron|pretrain)[\w.-]*|[0-9a-f]{8,}|\d+(\.\d+)?", "", script)


def _check(command: list[str], scripts: list[str], folder: Path) -> None:
    """Fail where a program says anything of scripts, which it gets as files."""
    program = shutil.which(command[0])
    if program is None:
        pytest.fail(f"{command[0]} is missing: apt-get install --yes {command[0]}")
    files = [folder / f"{number}.sh" for number in range(len(scripts))]
    for file, script in zip(files, scripts, strict=True):
        file.write_text(script)
    found = subprocess.run(
        [program, *command[1:], *files], capture_output=True, text=True, check=False, timeout=250
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.exhaustive
def test_every_script_asks_for_the_gpus_of_its_row(scripts: dict[tuple[Row, Mode], str]) -> None:
    for (row, mode), script in scripts.items():
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\d+)$", script, re.MULTILINE))
        nodes, ranks, of_node = (int(options[name]) for name in ("nodes", "ntasks", "ntasks-per-node"))
        assert row.gpus == ranks == nodes * of_node, (row, mode)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mode", "sign"),
    [
        (Mode.PROFILE, "nsys"),
        (Mode.NCCL_TRACE, "export NCCL_DEBUG="),
        (Mode.CHECKPOINT_LOAD, f"{CHECKPOINT}:{CHECKPOINT}:ro"),
    ],
)
def test_a_script_has_what_its_mode_needs_and_no_other_has(
    scripts: dict[tuple[Row, Mode], str], mode: Mode, sign: str
) -> None:
    assert {of for (_, of), script in scripts.items() if sign in script} == {mode}
    assert [row for (row, of), script in scripts.items() if of is mode and sign not in script] == []


LLAMA = "llama3.1-25.04"
REVIEWED = [
    *((LLAMA, "h100", mode, "") for mode in Mode if mode is not Mode.CHECKPOINT_SAVE),
    *((LLAMA, "h100", Mode.PERFORMANCE, container) for container in ("apptainer", "bwrap")),
    ("nemotron4-340b-24.11", "h100", Mode.PERFORMANCE, ""),  # NeMo 1
    ("nemotron4-340b-25.12", "gb200", Mode.CHECKPOINT_SAVE, ""),
    ("deepseek-v3-26.04", "gb300", Mode.PERFORMANCE, ""),  # recipes by name, launched by Megatron-Bridge
    ("llama3.1-26.06", "gb200", Mode.PROFILE, ""),
    ("nemotron3-26.08", "gb200", Mode.PERFORMANCE, ""),
]


@pytest.mark.parametrize(("workload", "gpu_type", "mode", "cluster"), REVIEWED)
def test_scripts_are_as_reviewed(
    config: None, workload: str, gpu_type: str, mode: Mode, cluster: str
) -> None:
    """Of the smallest scale."""
    rows = [row for row in published() if (row.workload, row.gpu_type) == (workload, gpu_type)]
    row = min((row for row in rows if row.has(mode)), key=lambda row: row.gpus)
    (run,) = show_script(row, mode, str(row.gpus), cluster)
    path = GOLDEN / "scripts" / f"{workload}-{cluster or gpu_type}-{mode.value}.sh"
    if os.environ.get("STEPTIME_UPDATE_GOLDEN"):
        path.write_text(run["script"])
        pytest.skip("written: review `git diff tests/golden`")
    assert run["script"] == path.read_text()
