"""What upstream's launch code submits for each row of a workload, as recorders/launches.py recorded it."""

import json
from pathlib import Path

DATA = Path(__file__).parent / "data"


def read_launches(path):
    """Return the recorded launches of a file below tests/data, by workload and row."""
    recorded = json.loads((DATA / path).read_text(encoding="utf-8"))
    return {name: dict(_rows(launches)) for name, launches in recorded.items()}


def _rows(launches):
    for of_type in launches["of_gpu_types"]:
        for key, row in of_type["rows"].items():
            yield key, launches["common"] | of_type["common"] | row


def of_kind(kind, launch):
    """Return the `argument`s, `variable`s or `slurm` options of a recorded launch, by name."""
    return {name.removeprefix(f"{kind} "): launch[name] for name in launch if name.startswith(f"{kind} ")}


def arguments_by_name(arguments):
    """Return arguments of a script as records have them: the values of each, by its name or whole text."""
    told = (word.split("=", 1) if word.startswith("-") else [word] for word in arguments)
    return {name: values for name, *values in told}
