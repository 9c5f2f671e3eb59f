"""Logs made up by seed: each is read to its end, whatever is in it and wherever its pieces end."""

import random

import pytest
from logs.generated_logs import generated_log
from logs.line_forms import read_chunks

SEEDS = range(200)


def pieces(log: bytes, seed: int) -> list[bytes]:
    """The log in pieces of any size up to 4 KiB."""
    order = random.Random(seed)  # noqa: S311 - the same pieces every time
    cut = []
    while log:
        size = order.randint(1, 4096)
        cut.append(log[:size])
        log = log[size:]
    return cut


@pytest.mark.parametrize("first", SEEDS[::50])
def test_a_log_does_not_depend_on_the_pieces(first: int) -> None:
    for seed in range(first, first + 50):
        log = generated_log(seed)
        assert repr(read_chunks(pieces(log, seed))) == repr(read_chunks([log])), seed
