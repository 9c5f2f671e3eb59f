"""Logs made up by seed: each is read to its end, whatever is in it and wherever its pieces end."""

import random
from collections.abc import Iterator

import pytest
from logs import line_forms
from logs.generated_logs import generated_log
from logs.line_forms import read_chunks

from steptime.logs import shapes
from steptime.logs.formats import Values

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


@pytest.mark.parametrize("first", SEEDS[::50])
def test_lines_of_a_known_shape_are_read_as_with_care(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    logs = [pieces(generated_log(seed), seed) for seed in range(first, first + 50)]
    monkeypatch.setattr(shapes, "_FROM_LINE", 2)
    by_shape = [repr(read_chunks(log)) for log in logs]
    monkeypatch.setattr(shapes, "_MOST_SHAPES", 0)
    assert by_shape == [repr(read_chunks(log)) for log in logs]


DENSE = {
    "nemo2": [line_forms.nemo2(step, last=299, prefix=f"{rank}: ") for step in range(300) for rank in (0, 1)],
    "megatron_bridge": [line_forms.megatron_bridge(step, total=300) for step in range(1, 301)],
    "torchtitan": [line_forms.torchtitan(step, rank=rank) for step in range(1, 301) for rank in (0, 1)],
}


@pytest.mark.parametrize("name", DENSE)
def test_most_lines_of_a_dense_log_are_read_by_their_shape(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    careful: list[bytes] = []
    find = shapes.LogFormat.find

    def counted(log_format: shapes.LogFormat, line: bytes) -> Iterator[tuple[bytes, Values]]:
        careful.append(line)
        return find(log_format, line)

    monkeypatch.setattr(shapes.LogFormat, "find", counted)
    log = read_chunks(line.encode() for line in DENSE[name])
    assert (log.format, len(log.steps)) == (name, 300)
    assert len(careful) < 160, "what is learned from is read three times"
