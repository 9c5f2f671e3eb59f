"""Run launch scripts in the sandbox, and find out which command each of them would start.

    python start.py ROWS.json STARTS.json

A row has the folder of its launch script, the script's name, its variables, and `links`: paths below the
installation folder with what they link to. Stand-ins for Python and srun record the command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INSTALL = Path("/llmb")
"""The installation folder of upstream's launcher, in memory."""
_PROGRAMS, _STARTED = INSTALL / "bin", INSTALL / "started"
_STAND_IN = f"""#!/bin/sh
printf '%s\\0' "$PWD" "$0" "$@" >{_STARTED}
env -0 >{_STARTED}.environment
"""


def make_stand_ins() -> None:
    """Write the programs that record a command in place of starting it."""
    _PROGRAMS.mkdir(parents=True)
    for name in ("python", "python3", "srun"):
        (_PROGRAMS / name).write_text(_STAND_IN)
        (_PROGRAMS / name).chmod(0o755)


def start(row: Mapping[str, Any]) -> dict[str, Any]:
    """Run the launch script that a row of ROWS.json describes.

    Return the command that it would start last: its working `folder`, its `arguments` with the program, and
    its `environment`; and the variables that the script was `given`. If the script fails or starts nothing,
    return its last output as `refused`.
    """
    for name, target in row["links"].items():
        link = INSTALL / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    _STARTED.unlink(missing_ok=True)
    given = {
        "PATH": f"{_PROGRAMS}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(INSTALL),
        **row["variables"],
    }
    ended = subprocess.run(
        ["/bin/bash", row["script"]],
        cwd=row["folder"],
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode or not _STARTED.exists():
        return {"refused": last_line(ended.stderr or ended.stdout) or "it starts nothing"}
    folder, *arguments = _STARTED.read_text().removesuffix("\0").split("\0")
    variables = Path(f"{_STARTED}.environment").read_text().removesuffix("\0").split("\0")
    return {
        "folder": folder,
        "arguments": arguments,
        "environment": dict(variable.split("=", 1) for variable in variables),
        "given": given,
    }


def last_line(text: str) -> str:
    """Return the last line of an output; empty if there is none."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def main(rows: Path, starts: Path) -> None:
    """Answer a JSON file of rows with a JSON file of commands, in the same order."""
    make_stand_ins()
    starts.write_text(json.dumps([start(row) for row in json.loads(rows.read_text())]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
