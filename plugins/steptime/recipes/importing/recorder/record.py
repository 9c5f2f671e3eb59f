"""Run a release's own launch scripts in the sandbox, and record what they would submit.

    python record.py ROWS.json RECORDS.json

The rows are those of `start.py`. This process runs the Python command that a launch script would start in a
fork, which saves importing the standard library again.
"""

import argparse  # noqa: F401
import dataclasses  # noqa: F401
import glob  # noqa: F401
import json
import logging  # noqa: F401
import os
import runpy
import sys
import tempfile  # noqa: F401
import traceback
import typing  # noqa: F401
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from start import INSTALL, last_line, make_stand_ins, start  # type: ignore[import-not-found]

_RECORD, _OUTPUT = INSTALL / "record.json", INSTALL / "output"


def main(rows: Path, records: Path) -> None:
    """For each row (the settings of one run), record the job that upstream's launch script would submit.

    If a row has a `gpu`, Megatron-Bridge is asked for that GPU type in place of the script's. If the script
    refuses, record its last output. `rows` and `records` are JSON files with a list each.
    """
    make_stand_ins()
    sys.pycache_prefix = str(INSTALL / "pycache")
    records.write_text(json.dumps([_recorded(row) for row in json.loads(rows.read_text())]))


def _recorded(row: Mapping[str, Any]) -> dict[str, Any]:
    started: dict[str, Any] = start(row)
    if "refused" in started:
        return started
    if "gpu" in row:
        arguments = started["arguments"]
        if "--gpu" not in arguments:
            return {"refused": f"its launch script gives no --gpu, which would have to be {row['gpu']}"}
        arguments[arguments.index("--gpu") + 1] = row["gpu"]
    _RECORD.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _submit(started)
    os.waitpid(pid, 0)
    if _RECORD.exists():
        job: dict[str, Any] = json.loads(_RECORD.read_text())
        return job
    return {"refused": last_line(_OUTPUT.read_text()) or "it submits nothing"}


def _submit(started: Mapping[str, Any]) -> None:
    """Run a Python command in this forked process, and end the process."""
    output = os.open(_OUTPUT, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        _, script, *arguments = started["arguments"]
        os.environ.clear()
        os.environ.update(started["environment"])
        os.chdir(started["folder"])
        path = Path(script).resolve()
        sys.argv = [str(path), *arguments]
        sys.path.insert(0, str(path.parent))
        os.environ["STEPTIME_GIVEN"] = json.dumps(started["given"])
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
