"""A line that is read by the form of an earlier one has the values that the format itself reads in it."""

import random

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs.formats import MEGATRON_BRIDGE, NEMO2, TORCHTITAN, LogFormat, plain
from steptime.logs.line_forms import StepForm

DAMAGE = [
    "nan",
    "1e400",
    "1,5",
    "9" * 20,
    "-",
    " | ",
    "\x1b[31m",
    "\r",
    "iteration 3/ 9 |",
    "",
    "ValueError: x",
]


def printed_by_ranks(rng: random.Random) -> list[str]:
    """Return the lines of some ranks, each of which has its own times and losses."""
    ranks, label = rng.choice([1, 2, 8]), rng.choice(["{}: ", "[rank{}]: ", "", "pod-{}/0 ", "[10:00:0{}] "])
    form = rng.randrange(3)
    lines: list[str] = []
    for step in range(rng.randrange(3, 30)):
        for rank in range(ranks):
            value, prefix = f"{rng.uniform(1, 900):.4g}", label.format(rank)
            lines += (
                [line_forms.nemo2(step, time=value, prefix=prefix)],
                line_forms.megatron_bridge(step + 1, elapsed_ms=value).splitlines(keepends=True),
                [line_forms.torchtitan(step + 1, rank=rank, loss=value)],
            )[form]
    return lines


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_log_reads_the_same_as_line_by_line(seed: int) -> None:
    """No form reaches over the end of what is given at once."""
    rng = random.Random(seed)  # noqa: S311 - the same logs every time
    lines = printed_by_ranks(rng)
    for _ in range(rng.randrange(6)):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        cut = rng.randrange(len(lines[at]))
        lines[at:at] = rng.choice([[], [lines[other]], lines[other : other + 9]])
        lines[at] = rng.choice([lines[other], lines[at][:cut] + rng.choice(DAMAGE) + lines[at][cut:]])
    text = "".join(lines)
    by_line = read_chunks(line.encode() for line in text.splitlines(keepends=True))
    assert read_chunks([text.encode()]).model_dump() == by_line.model_dump()


@pytest.mark.parametrize(
    ("log_format", "learned", "others"),
    [
        (
            NEMO2,
            line_forms.nemo2(7, prefix="3: "),
            [line_forms.nemo2(48, time="12.1", prefix="11: "), line_forms.nemo2(7, loss="0.001")],
        ),
        (MEGATRON_BRIDGE, line_forms.megatron_bridge(7).splitlines(keepends=True)[0], ["Step Time : 1.5s\n"]),
        (MEGATRON_BRIDGE, line_forms.megatron_bridge(7).splitlines(keepends=True)[1], []),
        (TORCHTITAN, line_forms.torchtitan(17), [line_forms.torchtitan(18, rank=5, loss="123.4")]),
    ],
)
def test_a_form_reads_what_the_format_reads(log_format: LogFormat, learned: str, others: list[str]) -> None:
    form = StepForm.learn(log_format, learned.rstrip("\n").encode())
    assert form is not None
    for line in (learned, *others):
        text = line.encode()
        if match := form.match(text):  # another notation of a number is another form
            [(_, values)] = log_format.find(plain(text))
            assert form.values(match).keys() == values.keys()
            assert log_format.step(5, form.values(match)) == log_format.step(5, values)
    assert form.match(learned.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("12.81", "nan"),
        ("12.81", "12,81"),
        ("12.81", "1e400"),
        ("iteration 7/49", "iteration 7/50"),
        ("iteration 7/", "iteration 1234567890123456/"),
        ("global_step: 7", "global_step: 7.5"),
        ("lr: ", "Error lr: "),
    ],
)
def test_a_line_of_another_form_is_left_to_its_format(old: str, new: str) -> None:
    line = line_forms.nemo2(7, prefix="3: ")
    form = StepForm.learn(NEMO2, line.rstrip("\n").encode())
    assert form is not None
    assert old in line
    assert form.match(line.replace(old, new).encode()) is None


@pytest.mark.parametrize(
    "line",
    [
        line_forms.nemo2(7, loss="nan"),
        line_forms.nemo2(7, time="2,693"),
        line_forms.nemo2(7).rstrip("\n") * 2,
    ],
)
def test_a_line_with_more_than_finite_numbers_has_no_form(line: str) -> None:
    assert StepForm.learn(NEMO2, line.rstrip("\n").encode()) is None
