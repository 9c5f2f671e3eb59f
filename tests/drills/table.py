"""A table of the outcomes of a session's drills."""

import os
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    """How one drill ended."""

    seed: int
    drill: str
    point: str
    way: str
    outcome: str
    """`valid`, `failed` or `cancelled`; for a red drill the error."""
    jobs: int
    took_s: float
    is_red: bool = False


OUTCOMES = []
"""The session's outcomes in order of their ends; drills that run in parallel add theirs here too."""


def write_down(outcome):
    """Add an outcome to the table, and write the table so far to the file that `DRILL_TABLE` names."""
    OUTCOMES.append(outcome)
    if file := os.environ.get("DRILL_TABLE"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(f"{as_markdown(OUTCOMES)}\n")


def as_markdown(outcomes):
    """Return a Markdown table with a row for each drill, by seed, and a line with their number."""
    lines = ["| seed | drill | when | how | outcome | jobs | seconds |", "|---|---|---|---|---|---|---|"]
    for one in sorted(outcomes):
        outcome = f"RED: {one.outcome}" if one.is_red else one.outcome
        cells = (one.seed, one.drill, one.point, one.way, outcome, one.jobs, f"{one.took_s:.0f}")
        lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    red = [one.seed for one in outcomes if one.is_red]
    told = f"red: {', '.join(f'make drills SEED={seed}' for seed in red)}" if red else "all green"
    return "\n".join([*lines, "", f"{len(outcomes)} drills, {told}"])
