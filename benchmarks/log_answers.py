"""What a log reader makes of logs: `PYTHONPATH=CHECKOUT/plugins python benchmarks/log_answers.py FOLDER`.

Each folder in FOLDER has the files of one run, in the order of their names. A line of JSON is printed for
each run, with what is read of it without a plan and with one, and what one who follows it gets. It runs with
every commit that has a reader: `equal_answers.py` compares two of them.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from steptime.logs.reader import read_log

Answer = Callable[[Sequence[Path]], Any]
_PIECES = 40
"""Into which a followed log is cut, unless they were shorter than some lines."""
_LEAST_PIECE_BYTES = 1000


def whole(files: Sequence[Path], **plan: int) -> Any:
    """What is read of the whole log."""
    return read_log(files, **plan).model_dump()  # type: ignore[arg-type]


def followed(files: Sequence[Path]) -> Any:
    """What follows from the first log while it grows."""
    from steptime.tracking.step_following import StepFollower

    log, follower = files[0].read_bytes(), StepFollower()
    size = max(_LEAST_PIECE_BYTES, len(log) // _PIECES)
    news = [one for at in range(0, len(log), size) for one in follower.feed(log[at : at + size])]
    dumped = [
        one.model_dump() if isinstance(one, BaseModel) else asdict(one) for one in news + follower.finish()
    ]
    return {"news": dumped}


ANSWERS: dict[str, Answer] = {"read": whole, "planned": partial(whole, max_steps=40, first_step=3)}
try:
    import steptime.tracking.step_following  # noqa: F401 - of a commit before, it cannot be asked
except ImportError:
    print("what follows a growing log is elsewhere in this commit, and is not compared", file=sys.stderr)
else:
    ANSWERS["followed"] = followed


def answered(answer: Answer, files: Sequence[Path]) -> Any:
    """An answer; an exception is one, too."""
    try:
        return answer(files)
    except Exception as error:
        return {"raised": repr(error)}


def main(folder: Path) -> None:
    """Print the answers."""
    for run in sorted(folder.iterdir()):
        files = sorted(run.iterdir())
        answers = {name: answered(answer, files) for name, answer in ANSWERS.items()}
        print(json.dumps({"run": run.name, **answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
