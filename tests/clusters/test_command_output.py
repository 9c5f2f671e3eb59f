"""Output of a command that arrives in pieces is passed on line by line."""

import pytest

from steptime.clusters.command_output import Lines


@pytest.mark.parametrize("length", [1, 2, 3, 100])
def test_lines_are_whole_however_they_are_cut(length):
    output = "one\n\ntwo é\r\nthe last".encode()
    heard = []
    lines = Lines(heard.append)
    text = "".join(lines.take(output[at : at + length]) for at in range(0, len(output), length))
    assert text == output.decode()
    assert heard == ["one", "", "two é\r"]
    lines.end()
    lines.end()
    assert heard == ["one", "", "two é\r", "the last"]


def test_a_line_break_at_the_end_leaves_no_line():
    heard = []
    lines = Lines(heard.append)
    lines.take(b"one\n")
    lines.end()
    assert heard == ["one"]
