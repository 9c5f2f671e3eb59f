"""Putting a run's `TrainingLog` together from the events of its log, or of several after a requeue."""

from collections import Counter, defaultdict
from typing import Any

from steptime.logs import completeness
from steptime.logs.attempts import Attempts, Restart
from steptime.logs.causes import RANK_FAILED, Symptom
from steptime.logs.checkpoints import Checkpoint, CheckpointLine, checkpoints_of, measured
from steptime.logs.events import Event, LogEvents
from steptime.logs.models import Problem, Step, TrainingLog
from steptime.logs.records import NODE_CHECK, Record
from steptime.logs.shapes import StepsPrinted
from steptime.recipes.models import Mode

_NO_FORMAT = "none"
_OfAttempts = list[list[Checkpoint]]


class Assembly:
    """Takes in the logs of one run: `begin`, `feed` and `end` for each, then `result`."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._events = LogEvents()
        self._bytes = 0
        self._bytes_before = 0
        self._format = _NO_FORMAT
        self._other_formats: Counter[str] = Counter()
        self._shown_modes: set[Mode] = set()
        self._attempts = Attempts()
        self._last_step: int | None = None
        self._checkpoint_lines: list[list[CheckpointLine]] = [[]]
        """Of each attempt."""
        self._records: dict[str, dict[str, Any]] = {}
        self._symptoms: defaultdict[str, list[Symptom]] = defaultdict(list)
        self._survived: defaultdict[str, list[Symptom]] = defaultdict(list)
        self._remarks: dict[str, Problem] = {}

    def begin(self, path: str) -> None:
        """Begin the run's first log, or its next."""
        if self._paths:
            self._attempt_ended()
        self._paths.append(path)
        self._events = LogEvents()
        self._bytes_before = self._bytes

    def feed(self, data: bytes) -> None:
        """Take in the next piece of the log."""
        if "binary_data" not in self._remarks and (at := data.find(b"\0")) >= 0:
            offset = self._bytes - self._bytes_before + at
            self.remark("binary_data", f"the log holds binary data, first at byte {offset:,}")
        self._bytes += len(data)
        for event in self._events.feed(data):
            self._take(event)

    def end(self) -> None:
        """End the log."""
        for event in self._events.finish():
            self._take(event)

    def remark(self, kind: str, message: str) -> None:
        """Note a problem of the log itself, once."""
        self._remarks.setdefault(kind, Problem(kind=kind, message=message, fatal=False))

    def result(self, *, max_steps: int | None, first_step: int) -> TrainingLog:
        """The run as its log has it, with what is wrong, fatal problems first."""
        steps = [self._attempts.steps[number] for number in sorted(self._attempts.steps)]
        checkpoints = [checkpoints_of(of_attempt) for of_attempt in self._checkpoint_lines]
        checkpoints[-1] = measured(checkpoints[-1], self._records.get("result", {}).get("checkpoints"))
        problems = self._problems(steps, checkpoints, max_steps, first_step)
        return TrainingLog(
            path=self._paths[-1],
            format=self._format,
            mode=self._mode(trained=bool(steps)),
            bytes_read=self._bytes,
            steps=tuple(steps),
            checkpoints=tuple(each.timing for attempt in checkpoints for each in attempt),
            problems=tuple(sorted(problems, key=lambda problem: not problem.fatal)),
            node_check=self._records.get(NODE_CHECK),
            started=self._records.get("start"),
            resumed=self._records.get("resumed"),
            ended=self._records.get("result"),
        )

    def _take(self, event: Event) -> None:
        if isinstance(event, StepsPrinted):
            self._take_steps(event)
        elif isinstance(event, CheckpointLine):
            self._checkpoint_lines[-1].append(event)
        elif isinstance(event, Record):
            self._take_record(event)
        elif isinstance(event, Mode):
            self._shown_modes.add(event)
        elif isinstance(event, Symptom):
            self._symptoms[event.kind].append(event)
        else:
            what = "a step" if event.global_step is None else f"step {event.global_step}"
            self.remark("truncated_line", f"the log ends within the line of {what}: what was cut is not read")

    def _mode(self, *, trained: bool) -> Mode | None:
        """What kind of run the log shows; a restart loads and is none, nor is a timer without a load."""
        for mode in (Mode.PROFILE, Mode.NCCL_TRACE):
            if mode in self._shown_modes:
                return mode
        began_with = (line for line in self._checkpoint_lines[0] if line.form.kind == "load")
        if any(line.form.phase == "ended" or "unix" in line.numbers for line in began_with):
            return Mode.CHECKPOINT_LOAD
        if any(line.form.kind == "save" for attempt in self._checkpoint_lines for line in attempt):
            return Mode.CHECKPOINT_SAVE
        return Mode.PERFORMANCE if trained else None

    def _take_steps(self, event: StepsPrinted) -> None:
        name = event.log_format.name
        if self._format == _NO_FORMAT:
            self._format = name
        if name != self._format:
            self._other_formats[name] += len(event.numbers)
            return
        if event.last_step is not None:
            self._last_step = event.last_step
        for new in self._attempts.add(event):
            if isinstance(new, Restart):
                self._survive()

    def _take_record(self, record: Record) -> None:
        if record.values is None:
            self.remark("broken_record", f"the trainer's record steptime.{record.name} is cut or broken")
            return
        if record.name == "start" and "start" in self._records:
            self._attempt_ended()
        self._records[record.name] = record.values

    def _attempt_ended(self) -> None:
        """Another attempt follows, so that what failed until now did not end the run."""
        self._attempts.begin()
        # Nodes are checked before the start that they are checked for.
        self._records = {name: self._records[name] for name in self._records if name == NODE_CHECK}
        self._survive()

    def _survive(self) -> None:
        for kind, symptoms in self._symptoms.items():
            self._survived[kind].extend(symptoms)
        self._symptoms.clear()
        self._checkpoint_lines.append([])

    def _problems(
        self, steps: list[Step], checkpoints: _OfAttempts, max_steps: int | None, first_step: int
    ) -> list[Problem]:
        numbers = [step.global_step for step in steps]
        expected_last = self._last_step if max_steps is None else max_steps - 1
        ended_short: list[Problem] = []
        others: list[Problem] = []
        if not numbers:
            ended_short.append(self._no_steps())
        else:
            if expected_last is not None:
                ended_short += completeness.short(numbers[-1], expected_last)
            others += completeness.not_finite(self._attempts.not_finite.values())
            others += completeness.missing_steps(numbers, self._expected_first(first_step, checkpoints))
            others += completeness.unexpected_steps(
                numbers, first_step, None if max_steps is None else max_steps - 1
            )
            others += completeness.untimed(steps)
            others += [completeness.restarted(restart) for restart in self._attempts.restarts]
            others += completeness.repeated(self._attempts)
        complete = bool(numbers) and expected_last is not None and not ended_short
        return [
            *self._trainers_reason(),
            *self._causes(complete=complete),
            *ended_short,
            *others,
            *completeness.unfinished_saves(checkpoints),
            *self._trainer_state(),
            *self._format_remarks(),
            *self._remarks.values(),
        ]

    def _no_steps(self) -> Problem:
        if self._bytes == 0:
            return Problem(kind="empty_log", message="the log is empty", fatal=True)
        message = f"no training step in the log's {self._bytes:,} bytes"
        return Problem(kind="no_steps", message=message, fatal=True)

    def _expected_first(self, planned: int, checkpoints: _OfAttempts) -> int | None:
        """The first step that should be there; None after a load whose step is not known."""
        if planned:
            return planned
        resumed = self._records.get("resumed", {}).get("global_step")
        if isinstance(resumed, int):
            return resumed
        loads = [each.timing for attempt in checkpoints for each in attempt if each.timing.kind == "load"]
        return loads[0].iteration if loads else 0

    def _causes(self, *, complete: bool) -> list[Problem]:
        problems = []
        # Why comes before how: srun may print that a rank ended before the node's own words are through.
        for kind, symptoms in sorted(self._symptoms.items(), key=lambda found: found[0] == RANK_FAILED):
            fatal = not complete or any(symptom.certain for symptom in symptoms)
            problems.append(Problem(kind=kind, message=_sentence(symptoms), fatal=fatal))
        for kind, symptoms in self._survived.items():
            message = f"in an earlier attempt: {_sentence(symptoms)}"
            problems.append(Problem(kind=kind, message=message, fatal=False))
        return problems

    def _trainers_reason(self) -> list[Problem]:
        """Why the training failed, in the trainer's own sentence: other signs of it follow from that."""
        end = self._records.get("result", {})
        error = end.get("error")
        if end.get("state") != "failed" or not isinstance(error, str):
            return []
        return [Problem(kind="trainer_failed", message=error, fatal=True)]

    def _trainer_state(self) -> list[Problem]:
        """How the training ended by the trainer's own record, if it writes such records."""
        end = self._records.get("result")
        if end is None:
            message = "the trainer wrote no record of its end: it was ended from outside, or still runs"
            return (
                [Problem(kind="no_end_record", message=message, fatal=True)]
                if "start" in self._records
                else []
            )
        if end.get("state") == "completed" or self._trainers_reason():
            return []
        message = f"the trainer recorded its end as '{end.get('state')}'"
        error = end.get("error")
        message += f": {error}" if isinstance(error, str) else ""
        return [Problem(kind="trainer_state", message=message, fatal=True)]

    def _format_remarks(self) -> list[Problem]:
        return [
            Problem(
                kind="mixed_formats",
                message=f"{count} lines of the format {name} beside those of {self._format} do not count",
                fatal=False,
            )
            for name, count in self._other_formats.items()
        ]


def _sentence(symptoms: list[Symptom]) -> str:
    further = len(symptoms) - 1
    return symptoms[0].message + (
        f" (and {further} more such line{'s' if further > 1 else ''})" if further else ""
    )
