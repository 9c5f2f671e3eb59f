"""Tables in terminals of any width: no column is dropped silently, and no number is cut."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime.cli import app, output
from steptime.cli.phases import Phases

LOGS = Path(__file__).parents[1] / "data" / "logs"
COMMANDS = [
    "recipes --workload llama3.1",
    "plan llama3.1 --size 8b --gpus 8-128",
    "sweep plan example-weekly",
    f"parse {LOGS}",
    "results columns",
]
HINT = re.compile(r"^(?:1 column|(\d+) columns) hidden: (.+); --wide shows (?:it|them)$", re.MULTILINE)


def printed(command):
    shown = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert shown.exit_code in (0, 1)
    return shown.stdout


def table_of(text):
    """Return the lines of the tables, without titles and what stands below."""
    return [line for line in text.splitlines() if line[:1] in tuple("┏┃┡│└")]


def headings(text):
    """Return the column headings of each table, each joined to one line."""
    heads = []
    for line in table_of(text):
        if line.startswith("┏"):
            heads.append([])
        elif line.startswith("┃"):
            heads[-1].append(line.strip("┃").split("┃"))
    return [[" ".join(" ".join(column).split()) for column in zip(*lines, strict=True)] for lines in heads]


def hidden_columns(text):
    """Return the columns that lines below the tables name as hidden."""
    hidden = []
    for count, names in HINT.findall(text):
        hidden += names.split(", ")
        assert int(count or 1) == len(names.split(", "))
    return hidden


@pytest.mark.parametrize("command", COMMANDS)
def test_what_does_not_fit_is_hidden_whole_and_named(command, here, monkeypatch):
    monkeypatch.setattr(output, "terminal_width", lambda: 1000)
    everything = headings(printed(command))
    for width in (80, 60):
        monkeypatch.setattr(output, "terminal_width", lambda width=width: width)

        narrow = printed(command)

        assert max(map(len, table_of(narrow))) <= width
        kept = headings(narrow)
        assert sum(map(len, kept)) + len(hidden_columns(narrow)) == sum(map(len, everything))
        for of_table, all_of_table in zip(kept, everything, strict=True):
            assert of_table[0] == all_of_table[0]
            assert set(of_table) <= set(all_of_table)
    assert headings(printed(f"{command} --wide")) == everything


def test_a_plan_keeps_what_it_costs(monkeypatch):
    monkeypatch.setattr(output, "terminal_width", lambda: 60)
    shown = printed("plan llama3.1 --size 8b --gpus 8-128")
    assert shown.startswith("5 jobs, at most ")
    (head,) = headings(shown)
    assert "GPU-hours ≤" in head


def test_output_to_a_pipe_is_plain_columns():
    *_, head = (rows := printed("plan llama3.1 --size 8b --gpus 8-128").splitlines())[:4]
    position = head.index("gbs") - 1
    assert [line[position : position + 4].strip() for line in rows[4:9]] == [
        "128",
        "256",
        "512",
        "1024",
        "2048",
    ]
    assert not re.search("[│━─┃]", "".join(rows))


@pytest.mark.parametrize("command", COMMANDS)
def test_output_to_a_pipe_has_at_most_120_columns(command, here):
    """Titles and sentences may be longer. What is hidden is named on stderr."""
    shown = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert max(len(line) for line in shown.stdout.splitlines() if "  " in line) <= 120
    assert "hidden" not in shown.stdout


def test_dates_and_other_short_cells_stay_in_one_line(monkeypatch, capsys):
    row = {"when": "2026-11-24 03:49", "verdict": "insufficient history", "changed": "NCCL_ALGO to Ring"}
    for width, changed in ((63, " NCCL_ALGO to Ring │"), (62, "")):
        monkeypatch.setattr(output, "terminal_width", lambda width=width: width)
        output.show([row], output.Format.TABLE, called="rows", wide=False)
        table, _, hidden = capsys.readouterr().out.rpartition("┘")
        assert f"│ 2026-11-24 03:49 │ insufficient history │{changed}\n" in table
        assert hidden.strip() == ("" if changed else "1 column hidden: changed; --wide shows it")


def test_a_terminal_too_narrow_for_short_cells_breaks_them_between_words(monkeypatch, capsys):
    monkeypatch.setattr(output, "terminal_width", lambda: 18)
    output.show([{"when": "2026-11-24 03:49"}], output.Format.TABLE, called="rows", wide=False)
    shown = capsys.readouterr().out
    assert max(map(len, table_of(shown))) <= 18
    assert "│ 2026-11-24     │\n│ 03:49" in shown


def test_numbers_of_a_column_have_equal_decimals(capsys):
    rows = [{"hours": 0.16667}, {"hours": 4.0}, {"hours": 12_345.5}, {"hours": None}]
    output.show(rows, output.Format.TABLE, called="rows")
    assert capsys.readouterr().out.splitlines() == [
        "     hours",
        "     0.167",
        "     4.000",
        "12,345.500",
        "",
    ]


def test_columns_are_aligned_beside_names_in_any_script(capsys):
    rows = [{"note": "東京", "at": "x"}, {"note": "Kassel", "at": "y"}, {"note": "ö", "at": "z"}]
    output.show(rows, output.Format.TABLE, called="rows")
    assert capsys.readouterr().out.splitlines() == ["note    at", "東京    x", "Kassel  y", "ö       z"]


def test_what_is_no_number_stands_as_it_is(capsys):
    output.show([{"value": 0.5}, {"value": "auto"}, {"value": True}], output.Format.TABLE, called="rows")
    assert capsys.readouterr().out.split() == ["value", "0.5", "auto", "True"]


@pytest.mark.long
def test_a_real_terminal_of_70_columns(here):
    """The program runs in a process of its own, which learns its width from the terminal alone."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 70))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    program = Path(sys.executable).with_name("steptime")
    process = subprocess.Popen(
        [program, "plan", "llama3.1"], stdout=terminal, env={**environment, "NO_COLOR": "1", "TERM": "xterm"}
    )
    os.close(terminal)
    told = b""
    while True:
        try:
            told += os.read(controller, 65536)
        except OSError:  # Linux reports the closed terminal by this error
            break
    assert process.wait(timeout=60) == 0
    lines = re.sub(r"\x1b\[\d*m", "", told.decode()).splitlines()
    assert any("tiny·fp32·1" in line for line in lines)
    assert max(map(len, table_of("\n".join(lines)))) <= 70
    assert HINT.search("\n".join(lines))


def test_a_phase_stays_one_line_in_a_pipe(capsys):
    Phases().report(f"looking at {'/a/long/path' * 20}")
    assert capsys.readouterr().err == f"   0 s  looking at {'/a/long/path' * 20}\n"
