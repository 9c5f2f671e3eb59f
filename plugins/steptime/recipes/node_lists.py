"""Node lists in Slurm's notation, which results and reports use: `gpu[08-10,12],login`."""

import re
from collections.abc import Iterable
from itertools import pairwise

_NODES = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_NUMBERED = re.compile(r"(.*?)(\d+)", re.ASCII)


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the names in a node list in Slurm's notation.

    >>> expand_nodes("gpu[08-10,12],login,rack[1-2]n[1-2]")
    ('gpu08', 'gpu09', 'gpu10', 'gpu12', 'login', 'rack1n1', 'rack1n2', 'rack2n1', 'rack2n2')
    """
    return tuple(name for part in _NODES.findall(text) for name in _expand(part))


def fold_nodes(names: Iterable[str]) -> str:
    """Format names as a sorted node list; names that differ only in their last number share brackets.

    >>> fold_nodes(["gpu12", "gpu08", "gpu10", "login", "gpu09", "rack1n2", "rack1n1"])
    'gpu[08-10,12],login,rack1n[1-2]'
    """
    families: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        numbered = _NUMBERED.fullmatch(name)
        head, digits = numbered.groups() if numbered else (name, "")
        families.setdefault((head, len(digits)), []).extend([int(digits)] if digits else [])
    return ",".join(
        _family(head, [str(number).zfill(width) for number in sorted(numbers)])
        for (head, width), numbers in families.items()
    )


def _family(head: str, numbers: list[str]) -> str:
    if len(numbers) < 2:
        return head + "".join(numbers)
    starts = [
        0,
        *(
            index + 1
            for index, (number, following) in enumerate(pairwise(numbers))
            if int(following) > int(number) + 1
        ),
    ]
    runs = [numbers[start:end] for start, end in pairwise([*starts, len(numbers)])]
    return f"{head}[{','.join(run[0] if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}]"


def _expand(pattern: str) -> list[str]:
    head, bracket, rest = pattern.partition("[")
    if not bracket:
        return [pattern]
    inside, _, tail = rest.partition("]")
    return [
        f"{head}{number}{end}"
        for item in inside.split(",")
        for number in _numbers(item)
        for end in _expand(tail)
    ]


def _numbers(item: str) -> list[str]:
    """Expand `08-10` to 08, 09, 10."""
    first, _, last = item.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        return [item]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
