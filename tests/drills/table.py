"""The outcomes of a session's drills, as a table."""

from collections.abc import Sequence
from typing import NamedTuple


class Outcome(NamedTuple):
    """How one drill ended."""

    seed: int
    drill: str
    point: str
    way: str
    outcome: str
    """`valid`, `failed` or `cancelled`; or red, and why."""
    jobs: int
    took_s: float
    is_red: bool = False


OUTCOMES: list[Outcome] = []
"""Of this session, in the order in which they ended."""


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """A row for each drill, and one line that counts."""
    lines = ["| seed | drill | when | how | outcome | jobs | seconds |", "|---|---|---|---|---|---|---|"]
    for one in outcomes:
        outcome = f"RED: {one.outcome}" if one.is_red else one.outcome
        cells = (one.seed, one.drill, one.point, one.way, outcome, one.jobs, f"{one.took_s:.0f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    red = [one.seed for one in outcomes if one.is_red]
    told = f"red: {', '.join(f'make drills SEED={seed}' for seed in red)}" if red else "all green"
    return "\n".join([*lines, "", f"{len(outcomes)} drills, {told}"])
