"""How two runs were made otherwise, by their records: the events of a series, and of runs side by side."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from steptime.errors import shown
from steptime.results.record import parse_record

_NO_CHANGE = {
    *("schema_version", "experiment", "cluster", "mode", "repeat", "checkpoint_path", "model_flops"),
    "environment",  # the whole one is in the provenance
}
"""Of a planned run, what does not change how it ran."""
_NODES = "nodes"


_FEW_NODES = 4
"""That are named; of more nodes it has how many are others."""
_COUNTED = "nodes: "


def changes(before: str, after: str) -> list[str]:
    """Return what was made otherwise between the record of one run and that of a later one: the events."""
    nodes = (", ".join(json.loads(record)["nodes"]) for record in (before, after))
    return made_changes(before, after) + node_changes(*nodes)


def made_changes(before: str, after: str) -> list[str]:
    """Return the same as `changes`, without the nodes."""
    return [_event(*one) for one in record_differences(before, after) if one[0] != _NODES]


def node_changes(before: str | None, after: str | None) -> list[str]:
    """Return how the nodes of a run differ from those of a run before it, both as in the store's column."""
    if before == after:
        return []
    usual, own = (set(filter(None, (nodes or "").split(", "))) for nodes in (before, after))
    if max(len(usual), len(own)) <= _FEW_NODES:
        return [_event(_NODES, _value(before), _value(after))]
    others = len(own - usual)
    return [f"{_COUNTED}{others} of {len(own)} are others"] if others else [f"{_COUNTED}in another order"]


def counts_nodes(event: str) -> bool:
    """Return whether an event only counts the nodes that differ: two runs with it may share none of them."""
    return event.startswith(_COUNTED)


def _event(name: str, before: str, after: str) -> str:
    return f"{name} {before} → {after}"


def made_sha256(record: str) -> str | None:
    """Return a hash that all runs made alike share, on whatever nodes; None for an unreadable record."""
    if parse_record(record) is None:
        return None
    made = _made_of(record)
    del made[_NODES]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def record_differences(before: str, after: str) -> list[tuple[str, str, str]]:
    """Return where two records differ in image, versions, driver, commit, options and nodes.

    Each difference is a name and both values.
    """
    one, other = _made_of(before), _made_of(after)
    return [
        (name, _value(one.get(name)), _value(other.get(name)))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    ]


def _made_of(record: str) -> dict[str, Any]:
    """What may make a run slower, by the names that people know."""
    content = json.loads(record)
    made_by, planned = content["provenance"], content["run"]
    staged = made_by["staged"]
    run = dict(_leaves({name: value for name, value in planned.items() if name not in _NO_CHANGE}))
    # Where the trainer lies follows from the trainer, and the image is named already.
    environment = {name: value for name, value in made_by["environment"].items() if name != "PYTHONPATH"}
    run.pop("recipe.image", None)
    run.pop("cluster_options.exclude", None)  # what it was to keep off shows in the nodes that it had
    return {
        "image": staged.get("image"),
        "image digest": staged.get("image_digest"),
        **{str(name): release for name, release in content["versions"].items()},
        "steptime": made_by["steptime_version"],
        "commit": made_by["git_commit"],
        "venv lock": staged.get("venv_lock_sha256"),
        "trainer": staged.get("trainer_sha256"),
        **run,
        **environment,
        _NODES: ", ".join(content["nodes"]),
    }


def _leaves(content: Mapping[str, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):  # as JSON has them: to ask for any Mapping takes a quarter of the time
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _value(value: Any) -> str:
    """As it can stand in a sentence; hashes differ in their beginnings."""
    text = "none" if value in (None, "") else str(value)
    digits = text.removeprefix("sha256:")
    is_hash = len(digits) >= 40 and all(digit in "0123456789abcdef" for digit in digits)
    return digits[:12] if is_hash else shown(text)
