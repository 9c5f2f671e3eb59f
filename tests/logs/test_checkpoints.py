"""Checkpoint lines in the spacings of the documents and of NeMo's releases."""

import pytest

from steptime.logs.models import CheckpointTiming
from steptime.logs.reader import read_chunks

SAVE = (
    "Global Checkpoint Save : Rank: 0 : Iteration: 50 : Start time: 1744408121.151s : Save duration: 4.389s"
)
LOAD = (
    "Global Checkpoint Load : Rank : 0 : Start time : 1744407969.270s : Time spent in load_checkpoint: 9.712s"
)


@pytest.mark.parametrize(
    ("line", "timing"),
    [
        (SAVE, CheckpointTiming(kind="save", iteration=50, started_at=1744408121.151, duration_s=4.389)),
        (LOAD, CheckpointTiming(kind="load", iteration=None, started_at=1744407969.27, duration_s=9.712)),
        (
            "Global Checkpoint Save: Rank:0: Start time: 1744408121.151s: Save duration: 4.389s",
            CheckpointTiming(kind="save", iteration=None, started_at=1744408121.151, duration_s=4.389),
        ),
    ],
)
@pytest.mark.parametrize(
    "prefix", ["", "[NeMo I 2025-04-11 14:48:45 nemo_logging:393] ", "text glued*.distcp files["]
)
@pytest.mark.parametrize("behind", ["\n", "[NeMo I] more\n", ""])
def test_timings(line: str, timing: CheckpointTiming, prefix: str, behind: str) -> None:
    assert read_chunks([f"{prefix}{line}{behind}".encode()]).checkpoints == (timing,)


def test_one_rank_speaks_for_all() -> None:
    lines = [SAVE.replace("Rank: 0", f"Rank: {rank}").replace("4.389", f"4.38{rank}") for rank in (3, 1, 2)]
    timings = read_chunks(["\n".join(lines).encode() + b"\n"]).checkpoints
    assert [timing.duration_s for timing in timings] == [4.381]


def test_an_asynchronous_save_is_marked() -> None:
    text = (
        f"{SAVE}\n{SAVE.replace('50', '74')}\nSuccessfully saved checkpoint from iteration      50 to /c\n"
        "Async finalization time took 0.018 s\n"
    )
    saves = read_chunks([text.encode()]).checkpoints
    assert [(save.iteration, save.asynchronous) for save in saves] == [(50, True), (74, False)]


def test_an_asynchronous_save_that_never_ended() -> None:
    scheduled = "Scheduled async checkpoint save for /c/step=24.ckpt\n"
    ended = "Successfully saved checkpoint from iteration      24 to /c/step=24.ckpt\n"
    problems = read_chunks([(scheduled + ended + scheduled).encode()]).problems
    assert "1 of 2 asynchronous checkpoint saves did not end" in [problem.message for problem in problems]
    assert len(read_chunks([(scheduled + ended).encode()]).problems) == len(problems) - 1
