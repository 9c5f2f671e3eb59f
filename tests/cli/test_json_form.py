"""The JSON of every command: one document that names its schema's version, and its rows under a name."""

import json
from pathlib import Path

import pytest
import stored
from stored_trial import StoredTrial, run_rounds
from typer.main import get_command
from typer.testing import CliRunner

from steptime.cli import app
from steptime.store.columns import SCHEMA_VERSION

LOG = Path(__file__).parents[1] / "data" / "logs"
METRICS = "metrics --workload llama3.1 --size 8b --dtype bf16 --gpu-type h100 --gpus 8 --step-time 12.27"
KEYS = {
    "cluster check local": "checks",
    "incidents": "incidents",
    "incidents show 1": "cells",
    METRICS: "metrics",
    "parse LOG": "logs",
    "plan llama3.1": "runs",
    "recipes": "recipes",
    "recipes --published": "recipes",
    "recipes --launch": "recipes",
    "recipes diff gpt-oss-26.02 gpt-oss-26.08": "changes",
    "results": "results",
    "results columns": "columns",
    "results compare": "cells",
    "results goodput --since 2026-01-01": "goodput",
    "results nodes pairs": "nodes",
    "results show last": "result",
    "results trend": "runs",
    "run llama3.1 --dry-run": "runs",
    "slurm status": "daemons",
    "status": "budgets",
    "sweep list": "sweeps",
    "sweep plan example-weekly": "cells",
    "trial list": "trials",
    "trial plan example-micro-batch": "variants",
    "trial show nccl-ring": "variants",
}
"""For a call of each command, the key of what it lists, or one key of a state."""


def commands(command, *path):
    """Yield each command below this one that has --format, by its full name."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)
    if any("--format" in parameter.opts for parameter in command.params):
        yield " ".join(path)


def test_every_command_with_a_format_is_called_here():
    names = set(commands(get_command(app)))
    called = {max((name for name in names if call.startswith(name)), key=len, default=call) for call in KEYS}
    assert called == names


@pytest.mark.parametrize(("call", "key"), KEYS.items())
def test_it_is_one_document_with_a_version(call, key, here, make_result):
    if call.startswith("results"):
        from steptime.store.run_queries import Store

        made = make_result("one")
        status = made.status.model_copy(update={"nodes": ("node1", "node2")})
        provenance = made.submitted.provenance.model_copy(update={"sweep": "pairs"})
        stored.write(Store(), make_result("one", status=status, provenance=provenance))
    if call.startswith("incidents"):
        from steptime.judging.incident_updates import update_incidents
        from steptime.store.run_queries import Store

        for number, level in enumerate([1.0] * 7 + [1.2]):
            result = make_result(f"run-{number}", step_times=[level] * 20, submitted_at=1e9 + number)
            stored.publish(Store(), result)
        update_incidents(Store(), now=1e9 + 60)
    if call.startswith("trial show"):
        from steptime.store.run_queries import Store

        run_rounds(StoredTrial(Store(), make_result), {"default": 0.2, "ring": 0.21, "broken": None}, 3)
    log = next(path for path in LOG.rglob("*.out"))
    arguments = [str(log) if word == "LOG" else word for word in call.split()]

    told = CliRunner().invoke(app, [*arguments, "--format", "json"])

    printed = json.loads(told.stdout)
    assert next(iter(printed.items())) == ("schema_version", SCHEMA_VERSION)
    assert key in printed
