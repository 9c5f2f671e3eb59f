"""Records what upstream's launch scripts set for every row of the documents' configuration tables.

    python -m recorders.nemo.record_settings --trainer-python PYTHON --dgxc GIT --nemo GIT --megatron GIT
        --nemo-run GIT --launcher GIT [--workload NAME ...]

GIT are the git folders of public repositories: NVIDIA/dgxc-benchmarking, NVIDIA/NeMo (NVIDIA-NeMo/NeMo),
NVIDIA/Megatron-LM, NVIDIA-NeMo/Run and NVIDIA/NeMo-Framework-Launcher. PYTHON is the trainer's
(`steptime up` installs it).

Nothing is transcribed. For each row the document's own `launch.sh` runs, in the sandbox of `steptime recipes
import`, with a stand-in for the program that it starts, which records its arguments and its environment. With
those, the launch module of the release's own NeMo runs until it would submit its job (`in_nemo.py`); for NeMo
1 Hydra composes the release's YAML file (`nemo_1.py`). The result, with the commits that were read, is
config/upstream/settings.json.
"""

import argparse
import csv
import datetime
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.recipes.importing.release import Sandbox, unpack_commit

from .nemo_1 import container_run, nemo_1_settings
from .releases import MODES, RELEASES, DocumentRelease, Nemo2
from .settings_record import RECORD, Flat, Row, condensed, row_of

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "config/references/configurations.csv"
PERFORMANCE = "performance"

Start = tuple[str, Row]
"""Mode and row that launch.sh was started for."""


def launched(
    release: DocumentRelease, starts: Sequence[tuple[str, Mapping[str, str]]], scripts: Path, scratch: Path
) -> list[dict[str, Any]]:
    """Return what launch.sh starts for rows in modes: `arguments`, `environment`, and what it `exported`.

    The script runs in the sandbox of `steptime recipes import`; its paths are given as those of `scratch`.
    """
    (scripts / "NeMo").mkdir(exist_ok=True)
    for name in ("bridge", "shared", f"work/{release.workload_folder}/NeMo"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    sandbox = Sandbox(scratch, scratch / "bridge", scratch / "shared")
    questions = [
        {
            "folder": f"/release/{scripts.relative_to(scratch)}",
            "script": "launch.sh",
            "links": {f"{release.workload_folder}/NeMo": "/tmp"},  # noqa: S108
            "variables": {
                **{"HOME": "/root", "SBATCH_ACCOUNT": "account", "SBATCH_PARTITION": "partition"},
                **{"DTYPE": row["dtype"], "JOB_TOTAL_GPUS": row["gpus"], **release.ask(row, "/llmb")},
                **dict([MODES[mode]] if mode != PERFORMANCE else []),
            },
        }
        for mode, row in starts
    ]
    answers = sandbox.answers("start.py", questions)
    for (_, row), answer in zip(starts, answers, strict=True):
        if "refused" in answer:
            raise ChildProcessError(
                f"{release.tag}:{release.folder}/launch.sh failed for {dict(row)}: {answer['refused']}"
            )
    text = json.dumps(answers).replace("/llmb", str(scratch / "work")).replace("/release", str(scratch))
    asking = {variable for variable, _ in MODES.values()}
    return [
        {
            "arguments": answer["arguments"],
            "environment": answer["environment"],
            "exported": {
                name: value
                for name, value in answer["environment"].items()
                if name not in {*answer["given"], "PWD", "OLDPWD", "SHLVL", "_"} - asking
            },
        }
        for answer in json.loads(text)
    ]


def modes_of(scripts: Path) -> list[str]:
    """Return the modes that a release's launch script supports, performance first."""
    text = "".join(path.read_text() for path in scripts.glob("*.sh"))
    return [PERFORMANCE, *(mode for mode, (variable, _) in MODES.items() if variable in text)]


class Recorder:
    """The git folders, and the folder into which the releases' files are written."""

    def __init__(self, sources: argparse.Namespace, scratch: Path) -> None:
        self.sources = sources
        self.scratch = scratch

    def record(self, release: DocumentRelease, rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Return the record of one document."""
        scripts = self.scripts(release)
        asked = [(mode, row) for mode in modes_of(scripts) for row in rows]
        answers = launched(release, asked, scripts, self.scratch)
        starts = {(mode, row_of(row)): start for (mode, row), start in zip(asked, answers, strict=True)}
        if not release.packages:
            launcher = unpack_commit(
                self.sources.launcher, "refs/tags/24.09", self.scratch / "launcher", "launcher_scripts"
            )
            starts = {
                key: container_run(start, self.sources.trainer_python, launcher, self.scratch / "container")
                for key, start in starts.items()
            }
        settings: dict[str, dict[Row, Flat]] = {}
        for (mode, row), flat in self.settings(release, scripts, starts).items():
            settings.setdefault(mode, {})[row] = self.readable(flat)
        performance = settings.pop(PERFORMANCE)
        examples = {
            dict(row)["gpu_type"]: shlex.join([Path(program).name, *arguments])
            for row in reversed(performance)
            for program, *arguments in [starts[PERFORMANCE, row]["arguments"]]
        }
        return {
            "repository": "NVIDIA/dgxc-benchmarking",
            "tag": release.tag,
            "folder": release.folder,
            "note": release.note,
            "commits": {
                gpu_type: {name: commit for name, commit in vars(packages).items() if commit}
                for gpu_type, packages in sorted(release.packages.items())
            },
            "command_lines": self.readable(examples),
            **condensed(performance),
            "modes": {
                mode: condensed({row: _changes(performance[row], changed[row]) for row in changed})
                for mode, changed in settings.items()
            },
        }

    def settings(
        self, release: DocumentRelease, scripts: Path, starts: Mapping[Start, dict[str, Any]]
    ) -> dict[Start, Flat]:
        """Return the flat settings of each row in each mode, given what launch.sh started for it."""
        if not release.packages:
            return nemo_1_settings(self.sources.trainer_python, scripts, starts)
        settings: dict[Start, Flat] = {}
        for packages in {id(each): each for each in release.packages.values()}.values():
            asked = {
                (mode, row): start
                for (mode, row), start in starts.items()
                if release.packages[dict(row)["gpu_type"]] is packages
            }
            settings |= self.nemo_2_settings(release, packages, scripts, asked)
        return {
            (mode, row): settings[mode, row]
            | {f"exported.{name}": value for name, value in start["exported"].items()}
            | dict(release.corrections.get(dict(row)["gpu_type"], {}))
            for (mode, row), start in starts.items()
        }

    def nemo_2_settings(
        self, release: DocumentRelease, packages: Nemo2, scripts: Path, starts: Mapping[Start, dict[str, Any]]
    ) -> dict[Start, Flat]:
        """Run the release's launch module in its own NeMo, in one process for all of `starts`."""
        nemo = self.nemo(release, packages, scripts)
        megatron = unpack_commit(
            self.sources.megatron, packages.megatron, self.scratch / packages.megatron, "megatron"
        )
        nemo_run = unpack_commit(
            self.sources.nemo_run, packages.nemo_run, self.scratch / packages.nemo_run, "nemo_run"
        )
        jobs = []
        for start in starts.values():
            _, dash_m, module, *arguments = start["arguments"]
            if dash_m != "-m":
                raise ValueError(f"launch.sh starts Python with {start['arguments'][1:]}, not with -m MODULE")
            jobs.append({"module": module, "arguments": arguments, "environment": start["environment"]})
        flat = self.scratch / "settings.json"
        environment = {
            **jobs[0]["environment"],
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, (nemo, megatron, nemo_run))),
        }
        done = subprocess.run(
            [
                self.sources.trainer_python,
                "-W",
                "ignore",
                str(Path(__file__).with_name("in_nemo.py")),
                str(flat),
            ],
            cwd=nemo,
            env=environment,
            input=json.dumps({"jobs": jobs}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ChildProcessError(f"NeMo {packages.nemo} failed: {done.stderr[-4000:]}")
        return dict(zip(starts, json.loads(flat.read_text()), strict=True))

    def scripts(self, release: DocumentRelease) -> Path:
        """The release's launch scripts, whose setup.sh pins what we read."""
        folder = self.scratch / f"{release.tag}-{_flat(release.folder)}"
        names = _names(
            self.sources.dgxc, release.tag, f"{release.folder}/", (".sh", ".py", ".patch", ".yaml")
        )
        scripts = unpack_commit(self.sources.dgxc, release.tag, folder, *names) / release.folder
        setup = next(path for name in ("setup.sh", "metadata.yaml") if (path := scripts / name).exists())
        release.check_pins(setup.read_text())
        return scripts

    def nemo(self, release: DocumentRelease, packages: Nemo2, scripts: Path) -> Path:
        """Return the folder of NeMo as setup.sh leaves it: patched, and with the release's own modules."""
        folder = self.scratch / f"{packages.nemo}-{_flat(release.folder)}"
        fresh = not folder.exists()
        nemo = unpack_commit(
            self.sources.nemo, packages.nemo, folder, "nemo", "scripts/__init__.py", "scripts/performance"
        )
        if fresh:
            for patch in scripts.glob("*.patch"):
                subprocess.run(["/usr/bin/patch", "-p1", "--quiet", "-i", str(patch)], cwd=nemo, check=True)
            for module in scripts.glob("*.py"):
                shutil.copy(module, nemo / "scripts/performance/llm")
        return nemo

    def readable(self, recorded: Any) -> Any:
        """Return `recorded` with paths of this run replaced by the variables that they came from."""
        if isinstance(recorded, str):
            return recorded.replace(str(self.scratch / "work"), "$WORK").replace(
                str(self.scratch), "$SCRATCH"
            )
        if isinstance(recorded, list):
            return [self.readable(each) for each in recorded]
        if isinstance(recorded, dict):
            return {key: self.readable(value) for key, value in recorded.items()}
        return recorded


def _flat(folder: str) -> str:
    return folder.replace("/", "-")


def _names(repository: Path, tag: str, folder: str, endings: tuple[str, ...]) -> list[str]:
    command = ["git", "-C", str(repository), "ls-tree", "--name-only", tag, folder]
    listing = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [name for name in listing if name.endswith(endings)]


def _changes(performance: Flat, changed: Flat) -> Flat:
    """Return the settings in which a mode differs from performance; null for variables that it unsets."""
    gone = performance.keys() - changed.keys()
    if not all(key.startswith("environment.") for key in gone):
        raise ValueError(f"a mode does without {sorted(gone)}: the record can say that of variables alone")
    unset: Flat = dict.fromkeys(gone)
    return unset | {
        key: value for key, value in changed.items() if key not in performance or performance[key] != value
    }


def main() -> None:
    """Write the record; with --workload, read only those documents again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer-python", required=True)
    for name in ("dgxc", "nemo", "megatron", "nemo-run", "launcher"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--workload", action="append", choices=[release.workload for release in RELEASES])
    sources = parser.parse_args()
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    for release in RELEASES:
        if sources.workload is None or release.workload in sources.workload:
            print(f"{release.workload}: NVIDIA/dgxc-benchmarking {release.tag}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as scratch:
                document = Recorder(sources, Path(scratch)).record(
                    release, [row for row in rows if row["recipe"] == release.workload]
                )
            documents = json.loads(RECORD.read_text())["documents"] if RECORD.exists() else {}
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            documents[release.workload] = {"recorded": today, **document}
            RECORD.write_text(json.dumps({"documents": documents}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
