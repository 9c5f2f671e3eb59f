"""A line that is read by the form of an earlier one has the values that the format itself reads in it."""

import random

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs import events
from steptime.logs.formats import MEGATRON_BRIDGE, NEMO2, TORCHTITAN, plain
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

BETWEEN = [
    ["1: Traceback (most recent call last):\n", '1:   File "train.py", line 3\n', "1: ValueError: x\n"],
    ["Traceback (most recent call last):\n"],
    ["1: ncclSystemError: System call failed.\n", "1: Last error:\n"],
    ["srun: error: node3: task 1: Killed\n"],
    [line_forms.nemo2(0), line_forms.nemo2(1), "Saving checkpoint at step 1\n"],
]


def printed_by_ranks(rng):
    """Return the lines of some ranks, each of which has its own times and losses."""
    ranks, label = rng.choice([1, 2, 8]), rng.choice(["{}: ", "[rank{}]: ", "", "pod-{}/0 ", "[10:00:0{}] "])
    form = rng.randrange(4)
    lines = []
    for step in range(rng.randrange(3, 30)):
        for rank in range(ranks):
            value, prefix = f"{rng.uniform(1, 900):.4g}", label.format(rank)
            lines += (
                [line_forms.nemo2(step, time=value, prefix=prefix)],
                line_forms.megatron_bridge(step + 1, elapsed_ms=value).splitlines(keepends=True),
                [line_forms.torchtitan(step + 1, rank=rank, loss=value if rank % 3 else "-1.0000")],
                [f"{prefix}iter {step}: loss {value}, time {value}ms\n"],
            )[form]
    return lines


def in_pieces(rng, text):
    """Cut a log at random places."""
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(1, 20)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_log_reads_the_same_with_forms_and_without(seed, monkeypatch):
    """However the log is cut into pieces, and whatever stands between its steps."""
    rng = random.Random(seed)  # noqa: S311 - the same logs every time
    lines = printed_by_ranks(rng)
    for _ in range(rng.randrange(6)):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        cut = rng.randrange(len(lines[at]))
        lines[at:at] = rng.choice([[], [lines[other]], lines[other : other + 9], rng.choice(BETWEEN)])
        lines[at] = rng.choice([lines[other], lines[at][:cut] + rng.choice(DAMAGE) + lines[at][cut:]])
    if rng.random() < 0.2:
        lines += printed_by_ranks(rng)  # a log of two formats
    text = "".join(lines).encode()
    step_line = "iter {step}: loss {loss}, time {ms}ms" if b"iter " in text else None

    with_forms = [
        repr(read_chunks(pieces, step_line=step_line))  # NaN does not equal itself
        for pieces in ([text], text.splitlines(keepends=True), in_pieces(rng, text))
    ]

    monkeypatch.setattr(events, "has_forms", lambda _: False)
    without = repr(read_chunks([text], step_line=step_line))
    assert with_forms == [without] * 3


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
        (TORCHTITAN, line_forms.torchtitan(17, loss="-1.0000"), [line_forms.torchtitan(18, loss="-1.5000")]),
    ],
)
def test_a_form_reads_what_the_format_reads(log_format, learned, others):
    form = StepForm.learn(log_format, learned.rstrip("\n").encode())
    assert form is not None
    for line in (learned, *others):
        text = line.encode()
        if match := form.match(text):  # another notation of a number is another form
            [(_, values)] = log_format.find(plain(text))
            assert form.values(match).keys() == values.keys()
            assert form.printed(5, match).step == log_format.printed(5, values, None, b"").step
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
def test_a_line_of_another_form_is_left_to_its_format(old, new):
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
def test_a_line_with_more_than_finite_numbers_has_no_form(line):
    assert StepForm.learn(NEMO2, line.rstrip("\n").encode()) is None
