"""Run a release's own launch scripts in the sandbox, and record what they would submit.

    python record.py ROWS.json RECORDS.json

A row has the folder of its launch script, the checkout of Megatron-Bridge and the script's variables. A
stand-in for `python` records the command that a launch script starts. This process then runs that command in
a fork, which saves importing the standard library again.
"""

import argparse  # noqa: F401
import dataclasses  # noqa: F401
import glob  # noqa: F401
import json
import logging  # noqa: F401
import os
import runpy
import subprocess
import sys
import tempfile  # noqa: F401
import traceback
import typing  # noqa: F401
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_INSTALL = Path("/llmb")
_STARTED, _RECORD, _WORDS = _INSTALL / "started", _INSTALL / "record.json", _INSTALL / "words"
_PYTHON = f"""#!/bin/sh
printf '%s\\0' "$PWD" "$@" >{_STARTED}
env -0 >{_STARTED}.environment
"""


def main(rows: Path, records: Path) -> None:
    """For each row (the settings of one run), record the job that upstream's launch script would submit.

    If the script refuses, record its last output. `rows` and `records` are JSON files with a list each.
    """
    folder = _INSTALL / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / name).write_text(_PYTHON)
        (folder / name).chmod(0o755)
    sys.pycache_prefix = str(_INSTALL / "pycache")
    records.write_text(json.dumps([_recorded(row, folder) for row in json.loads(rows.read_text())]))


def _recorded(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    link = _INSTALL / "workloads" / row["workload"] / "Megatron-Bridge"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(row["bridge"])
    for path in (_STARTED, _RECORD):
        path.unlink(missing_ok=True)
    asked = {
        **{
            "PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(_INSTALL),
            "HF_TOKEN": "none",
        },
        **{"LLMB_INSTALL": str(_INSTALL), "SBATCH_ACCOUNT": "none", "SBATCH_PARTITION": "none"},
        **row["variables"],
    }
    ended = subprocess.run(
        ["/bin/bash", row["script"]],
        cwd=row["folder"],
        env=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode or not _STARTED.exists():
        return {"refused": _last(ended.stderr or ended.stdout) or "it starts nothing"}
    pid = os.fork()
    if pid == 0:
        _submit(asked)
    os.waitpid(pid, 0)
    if _RECORD.exists():
        job: dict[str, Any] = json.loads(_RECORD.read_text())
        return job
    return {"refused": _last(_WORDS.read_text()) or "it submits nothing"}


def _submit(asked: dict[str, str]) -> None:
    """Run the Python command that the launch script started, in this forked process, and end the process."""
    words = os.open(_WORDS, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(words, 1)
    os.dup2(words, 2)
    try:
        folder, script, *arguments = _STARTED.read_text().rstrip("\0").split("\0")
        told = dict(
            one.split("=", 1) for one in Path(f"{_STARTED}.environment").read_text().split("\0") if one
        )
        os.environ.clear()
        os.environ.update(told)
        os.chdir(folder)
        path = Path(folder, script).resolve()
        sys.argv = [str(path), *arguments]
        sys.path[:0] = [str(path.parent), str(_HERE)]
        os.environ["STEPTIME_GIVEN"] = json.dumps(asked)
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _last(words: str) -> str:
    lines = words.strip().splitlines()
    return lines[-1] if lines else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
