"""Logs made up of many lines: each is read to its end, whatever is in it and wherever its pieces end."""

from hypothesis import given, settings
from hypothesis import strategies as st
from logs import line_forms
from logs.line_forms import read_chunks

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


@settings(max_examples=50)
@given(
    st.one_of(*(st.lists(line, min_size=15, max_size=30) for line in LINES)),
    st.lists(st.tuples(st.integers(0, 5000), OTHERS), max_size=4),
    st.lists(st.integers(1, 5000), max_size=5),
)
def test_pieces_do_not_change_what_is_read(
    lines: list[str], others: list[tuple[int, str]], sizes: list[int]
) -> None:
    text = "".join(lines)
    for at, what in others:
        text = text[:at] + what + text[at:]
    log, cut, at = text.encode(), list[bytes](), 0
    for size in (*sizes, len(log)):
        cut.append(log[at : at + size])
        at += size
    assert repr(read_chunks(cut)) == repr(read_chunks([log]))


def test_a_restart_amid_many_steps_leaves_only_the_new_attempt() -> None:
    lines = [line_forms.nemo2(step, last=299, time=time) for time in ("2.1", "2.2") for step in range(200)]
    log = read_chunks(["".join(lines[:350]).encode()])
    assert [(step.global_step, step.step_time_s) for step in log.steps] == [
        (step, 2.2) for step in range(150)
    ]


def test_an_iteration_before_the_first_is_no_step_amid_many_steps_either() -> None:
    lines = [line_forms.megatron_bridge(count, total=300) for count in (*range(1, 200), 0, *range(200, 301))]
    assert [step.global_step for step in read_chunks(line.encode() for line in lines).steps] == [*range(300)]
