"""Break the code in known ways, one at a time, and see whether the tests notice.

    .venv/bin/python tests/mutants.py [WORD]      # only entries whose file or harm contains WORD

mutants.yaml lists the changes: each replaces a text that its file contains once, and names the tests that
should fail. Files are changed in place and restored: run nothing else in this checkout meanwhile.
Exits with 1 if a change survives, and with 2 if an entry no longer fits the code.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
KILLED, SURVIVED = 1, 0
"""Exit codes of pytest."""


def outcome(entry: dict[str, Any]) -> str:
    """Apply one change, run its tests, restore the file; return `killed`, `survived` or `stale`."""
    path = ROOT / entry["path"]
    source = path.read_text(encoding="utf-8")
    if source.count(entry["old"]) != 1:
        return "stale"
    tests = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", "-p", "no:cacheprovider", *entry["tests"]]
    try:
        path.write_text(source.replace(entry["old"], entry["new"]), encoding="utf-8")
        code = subprocess.run(tests, cwd=ROOT, capture_output=True, check=False).returncode
    finally:
        path.write_text(source, encoding="utf-8")
    return {KILLED: "killed", SURVIVED: "survived"}.get(code, "stale")


def main() -> int:
    """Print a line for each change; return 2 if an entry is stale, 1 if a change survives, else 0."""
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    names = set()
    for entry in entries:
        if word in entry["path"] or word in entry["harm"]:
            names.add(result := outcome(entry))
            print(f"{result:8} {entry['path']}: {entry['harm']}", flush=True)
    return 2 if "stale" in names else 1 if "survived" in names else 0


if __name__ == "__main__":
    sys.exit(main())
