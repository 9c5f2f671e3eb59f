"""The search finds the same lines wherever a stream is split, and survives any bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs.events import MAX_LINE_BYTES, LineSearch, WholeLines
from steptime.logs.training_log import Step

unhurried = settings(max_examples=50)

WORDS = [b"alpha", b"be", b"gamma ray"]

text = st.lists(
    st.sampled_from(
        [b"alpha", b"be", b"gamma ", b"ray", b"\n", b"\r", b"\r\n", b"x", b"\0", b"al", "█".encode()]
    )
).map(b"".join)

log_text = st.lists(
    st.one_of(
        st.integers(0, 60).map(lambda step: line_forms.nemo2(step).encode()),
        st.integers(0, 60).map(lambda step: line_forms.tqdm(step).encode()),
        st.integers(1, 60).map(lambda step: line_forms.megatron_bridge(step).encode()),
        st.integers(1, 60).map(lambda step: line_forms.torchtitan(step).encode()),
        st.sampled_from(
            [
                b"Traceback (most recent call last):\n",
                b"ValueError: no\n",
                b'steptime.start {"a": 1}\n',
                b"srun: error: n1: task 3: Killed\n",
                b"Training epoch 0, iteration ",
                b"Epoch 0: : ",
                b"global_step=",
            ]
        ),
        st.integers(0, 999).map(line_forms.nccl_trace),
        st.binary(max_size=30),
    ),
    max_size=25,
).map(b"".join)


def pieces(data, sizes):
    cut, at = [], 0
    for size in sizes:
        cut.append(data[at : at + size])
        at += size
    return [*cut, data[at:]]


@unhurried
@given(text, st.lists(st.integers(0, 9), max_size=30))
def test_lines_do_not_depend_on_the_pieces(data: bytes, sizes: list[int]) -> None:
    lines = WholeLines()
    blocks = [lines.feed(piece) for piece in pieces(data, sizes)]
    assert all(block.endswith((b"\n", b"\r")) for block in blocks if block)
    assert b"".join([*blocks, lines.finish()]) == data


@unhurried
@given(text)
def test_lines_are_those_that_bear_a_word(data: bytes) -> None:
    expected = [
        line for line in data.replace(b"\r", b"\n").split(b"\n") if any(word in line for word in WORDS)
    ]
    assert [line.text for line in LineSearch(WORDS).lines(data)] == expected


@unhurried
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True).map(sorted), log_text)
def test_a_step_printed_is_a_step_read(steps: list[int], noise: bytes) -> None:
    """Other text in the log does not matter, unless it looks like steps."""
    harmless = noise.replace(b"Training epoch", b"").replace(b"Epoch", b"")
    harmless = harmless.replace(b"iteration", b"").replace(b"step:", b"").replace(b"Step Time", b"")
    lines = [harmless + b"\n" + line_forms.nemo2(step, last=10**6).encode() for step in steps]
    assert [step.global_step for step in read_chunks(lines).steps] == steps


@unhurried
@given(st.binary(max_size=2000))
def test_noise_is_no_step(noise: bytes) -> None:
    assert read_chunks([noise]).steps == ()


def test_a_line_without_end_does_not_fill_the_memory():
    lines = WholeLines()
    piece = bytes(1 << 16)
    for fed in range(len(piece), 100 * len(piece), len(piece)):
        waiting = fed % MAX_LINE_BYTES
        assert len(lines.feed(piece)) == (0 if waiting else MAX_LINE_BYTES)
        assert lines.waiting_bytes == waiting
    found = [*LineSearch(WORDS).lines(lines.feed(b"alpha\n"))]
    assert [line.words for line in found] == [[0]]


@pytest.mark.long
def test_long_lines_of_nothing_else_are_read_in_time():
    """Garbage may have words and digits by the megabyte; no search takes quadratic time."""
    for hostile in (
        b"Training epoch ",
        b"9" * 20,
        b"Epoch 1: ",
        b"a" * 50,
        b"[Rank 1] ",
        b"iteration  ",
        b"step: 1 ",
    ):
        head = b"Training epoch 0, iteration 1/2 Epoch 0: Watchdog caught collective operation timeout tps: "
        read_chunks([head + hostile * (100_000 // len(hostile)) + b"\n"])


def test_only_real_numbers_become_numbers():
    line = b"Training epoch 0, iteration 1/2 | global_step: | train_step_timing in s: fast | lr: - | x: .\n"
    assert read_chunks([line]).steps == (Step(global_step=1),)


STEPS = st.integers(1, 60)
VALUES = st.one_of(
    st.floats(0, 100).map("{:.4g}".format), st.sampled_from(["nan", "inf", "1e400", "9" * 25, "-1", "7.", ""])
)
LABELS = st.sampled_from(["0: ", "1: ", "[rank1]: ", "pod-7/2 ", "[2026-02-03 04:05:06] "])
LINES = [
    st.builds(line_forms.nemo2, STEPS, time=VALUES, loss=VALUES, prefix=LABELS),
    st.builds(line_forms.megatron_bridge, STEPS, elapsed_ms=VALUES, grad_norm=VALUES),
    st.builds(line_forms.torchtitan, STEPS, rank=st.integers(0, 2), loss=VALUES),
    st.builds(line_forms.tqdm, STEPS, time=VALUES),
]
OTHERS = st.one_of(
    st.sampled_from(["\x1b[31m", "7", "-", "\r", "\n", " ", "\0", "nan", "ValueError: x", "Epoch 1: "]),
    st.sampled_from(
        ["srun: error: n1: task 3: Killed\n", "steptime.start {}\n", "Training epoch 0, iteration "]
    ),
    *LINES,
)


@st.composite
def alike(draw: st.DrawFn) -> bytes:
    """Draw many lines of one form, with other text in some places."""
    text = "".join(draw(st.one_of(*(st.lists(line, min_size=15, max_size=30) for line in LINES))))
    for at, what in draw(st.lists(st.tuples(st.integers(0, 5000), OTHERS), max_size=4)):
        text = text[:at] + what + text[at:]
    return text.encode()


@pytest.mark.long
@unhurried
@given(st.one_of(log_text, alike()), st.lists(st.integers(0, 3000), max_size=20))
def test_a_log_does_not_depend_on_the_pieces(log: bytes, sizes: list[int]) -> None:
    assert repr(read_chunks(pieces(log, sizes))) == repr(read_chunks([log]))


def test_a_restart_amid_many_steps_leaves_only_the_new_attempt():
    lines = [line_forms.nemo2(step, last=299, time=time) for time in ("2.1", "2.2") for step in range(200)]
    log = read_chunks(["".join(lines[:350]).encode()])
    assert [(step.global_step, step.step_time_s) for step in log.steps] == [
        (step, 2.2) for step in range(150)
    ]


def test_an_iteration_before_the_first_is_no_step_amid_many_steps_either():
    lines = [line_forms.megatron_bridge(count, total=300) for count in (*range(1, 200), 0, *range(200, 301))]
    assert [step.global_step for step in read_chunks(line.encode() for line in lines).steps] == [*range(300)]
