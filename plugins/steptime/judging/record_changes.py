"""What changed between two runs, by their records in the store: image, versions, options, nodes, …"""

import json
from collections.abc import Mapping
from typing import Any

from steptime.errors import one_line
from steptime.store.run_records import NODES, join_nodes, read_setup, split_nodes

_FEW_NODES = 4
"""Up to this many nodes are named; of more, only the number of different ones is given."""


def changes(before: str, after: str) -> list[str]:
    """Return what changed between the records of two runs of a series, as texts such as `image a → b`."""
    nodes = (join_nodes(json.loads(record)["nodes"]) for record in (before, after))
    return setup_changes(before, after) + node_changes(*nodes)


def setup_changes(before: str, after: str) -> list[str]:
    """Return what changed between the records of two runs, nodes aside, as texts such as `image a → b`."""
    return [_event(*difference) for difference in record_differences(before, after) if difference[0] != NODES]


def node_changes(before: str | None, after: str | None) -> list[str]:
    """Return at most one text on how the nodes changed; `before` and `after` are from the column `nodes`."""
    if before == after:
        return []
    usual, now = (set(split_nodes(nodes)) for nodes in (before, after))
    if max(len(usual), len(now)) <= _FEW_NODES:
        return [_event(NODES, shown_value(before), shown_value(after))]
    others = len(now - usual)
    return [f"nodes: {others} of {len(now)} are others"] if others else ["nodes: in another order"]


def changed_to(event: str) -> tuple[str, str]:
    """Return the name and the new value of a change: `("image", "b")` for `image a → b`."""
    return event.partition(" ")[0], event.rpartition(" → ")[2]


def has_changed_to(made: Mapping[str, Any], event: str) -> bool:
    """Return whether a run has the new value (b) of a change (`event`, such as `image a → b`).

    `made` is the run's setup, as `read_setup` returns it.
    """
    values = [shown_value(value) for name, value in made.items() if event.startswith(f"{name} ")]
    return event.rpartition(" → ")[2] in (values or ["none"])


def is_notable(event: str) -> bool:
    """Return whether a change such as `image a → b` is about more than nodes or steptime's version."""
    return event.partition(" ")[0].rstrip(":") not in (NODES, "steptime", "commit")


def _event(name: str, before: str, after: str) -> str:
    return f"{name} {before} → {after}"


def record_differences(before: str, after: str) -> list[tuple[str, str, str]]:
    """Return where two records differ in image, versions, driver, commit, options and nodes.

    Each difference is a name with the earlier and the later value.
    """
    earlier, later = read_setup(before), read_setup(after)
    return [
        (name, shown_value(earlier.get(name)), shown_value(later.get(name)))
        for name in dict.fromkeys((*earlier, *later))
        if earlier.get(name) != later.get(name)
    ]


def shown_value(value: Any) -> str:
    """Return a value as it can stand in a sentence; hashes are cut to 12 digits."""
    text = "none" if value in (None, "") else str(value)
    digits = text.removeprefix("sha256:")
    is_hash = len(digits) >= 40 and all(digit in "0123456789abcdef" for digit in digits)
    return digits[:12] if is_hash else one_line(text)
