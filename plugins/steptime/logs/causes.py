"""Why runs end: what the libraries below a training say when it fails, one record a cause."""

import re
from dataclasses import dataclass
from typing import NamedTuple

RANK_FAILED = "rank_failed"
"""The kind that says only how a rank ended: any other says why."""
_LONGEST_QUOTE = 300
_REACH_BEFORE, _REACH_BEHIND = 500, 1000
"""Bytes around a word in which its form is looked for: a line of garbage may be a mebibyte long."""


class Symptom(NamedTuple):
    """A line that tells of a failure."""

    kind: str
    message: str
    certain: bool
    """Whether training cannot have gone on in good order; else it is a failure only if steps are missing."""


@dataclass(frozen=True)
class Cause:
    """A cause of failure: the words that mark its lines, and the forms these take."""

    kind: str
    words: tuple[bytes, ...]
    forms: tuple[tuple[str, str], ...]
    """Pairs of a regular expression and the sentence, which takes the expression's named groups."""
    certain: bool = True

    def find(self, line: bytes, word: bytes) -> Symptom | None:
        """What the line says around `word`, or None where it only bears the word by chance."""
        at = line.find(word)
        text = line[max(0, at - _REACH_BEFORE) : at + _REACH_BEHIND]
        for form, sentence in self.forms:
            if match := re.search(form.encode(), text):
                values = {name: quote(value) for name, value in match.groupdict().items()}
                return Symptom(self.kind, sentence.format(**values), self.certain)
        return None


CAUSES = (
    Cause(
        "nccl_timeout",
        (b"Watchdog caught collective operation timeout",),
        (
            (
                r"\[Rank (?P<rank>\d+)\].*?OpType=(?P<operation>\w+).*?Timeout\(ms\)=(?P<limit>\d+)",
                "NCCL's watchdog ended the job: {operation} of rank {rank} took longer than {limit} ms "
                "(the recipe's cure on GB200 is TP_COMM_OVERLAP=False)",
            ),
            ("timeout", "NCCL's watchdog ended the job: a collective operation timed out"),
        ),
    ),
    Cause(
        "cuda_out_of_memory",
        (b"out of memory",),
        (
            (
                r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)\. GPU (?P<gpu>\d+)",
                "CUDA out of memory: {size} could not be allocated on GPU {gpu}",
            ),
            (
                r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)",
                "CUDA out of memory: {size} could not be allocated",
            ),
            (r"(?i:cuda|hip)(?: error:?| failure(?: \d+)?)? '?out of memory", "CUDA out of memory"),
        ),
    ),
    Cause(
        "host_out_of_memory",
        (b"oom_kill", b"oom-kill", b"Out of memory: Killed"),
        (("(?i)oom|out of memory", "the host ran out of memory, and the kernel killed a process"),),
    ),
    Cause(
        "userbuffers_hang",
        (b"expecting ",),
        (
            (
                r"expecting (?P<expected>\d+) got (?P<got>\d+)",
                "userbuffers wait for a flag of another GPU (expecting {expected} got {got}): a GPU hangs",
            ),
        ),
    ),
    Cause(
        "hub_unreachable",
        (
            b"couldn't connect to",
            b"Max retries exceeded with url",
            b"Can't load tokenizer",
            b"OfflineModeIsEnabled",
            b"is a gated repo",
            b"access a gated repo",
        ),
        (
            (
                r"couldn't connect to '(?P<url>[^']+)'",
                "the hub at {url} cannot be reached: stage the tokenizer",
            ),
            (
                r"host='(?P<host>[^']+)'.*?Max retries",
                "the host {host} cannot be reached: stage the tokenizer",
            ),
            (r"load tokenizer for '(?P<name>[^']+)'", "the tokenizer '{name}' cannot be loaded: stage it"),
            ("gated repo", "the hub keeps this model for those who accepted its terms: set HF_TOKEN"),
            ("OfflineMode", "a file of the hub is missing in offline mode: stage the tokenizer"),
        ),
        certain=False,
    ),
    Cause(
        "time_limit",
        (b"DUE TO TIME LIMIT",),
        ((r"CANCELLED AT (?P<at>\S+)", "Slurm ended the job at its time limit, {at}"),),
        certain=False,
    ),
    Cause(
        "cancelled",
        (b"CANCELLED AT ",),
        (
            (
                r"CANCELLED AT (?P<at>[\w:-]+) DUE TO (?!TIME LIMIT)(?P<why>[A-Z ]+) \*",
                "Slurm ended the job at {at}: {why}",
            ),
            (r"CANCELLED AT (?P<at>[\w:-]++)(?! DUE TO)", "the job was cancelled at {at}"),
        ),
        certain=False,
    ),
    Cause(
        RANK_FAILED,
        (b"srun: error: ", b"(exitcode: ", b" received by PID ", b" got signal: "),
        (
            (
                r"srun: error: (?P<node>\S+): tasks? (?P<task>[\d,-]+): (?P<how>[^\r\n]+)",
                "srun: task {task} on {node}: {how}",
            ),
            (
                r"\(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)",
                "local rank {rank} ended with exit code {code}",
            ),
            (
                r"Signal (?P<number>\d+) \((?P<name>\w+)\) received",
                "a rank was ended by signal {number} ({name})",
            ),
            (r"got signal: (?P<number>\d+)", "the job was ended by signal {number}"),
        ),
        certain=False,
    ),
    Cause(
        "not_started",
        (b"pyxis: ", b"unrecognized option ", b"Invalid MPI type "),
        (
            (r"pyxis: +\[ERROR\] (?P<what>[^\r\n]+)", "enroot: {what}"),
            (r"pyxis: +FATAL ERROR: ?(?P<what>[^\r\n]+)", "the image cannot be unpacked: {what}"),
            (
                r"--container-mounts: source path does not exist: (?P<path>[^\r\n]+)",
                "the folder {path}, which the container mounts, is not there",
            ),
            (
                r"pyxis: couldn't chdir to (?P<path>[^\r\n]+): (?P<why>[^:\r\n]+)",
                "the job's folder {path} cannot be entered in the container: {why}",
            ),
            (
                r"srun: unrecognized option \W{1,3}(?P<option>--container-[a-z-]+)",
                "srun has no pyxis there: it does not know {option}",
            ),
            (
                r"Invalid MPI type '(?P<kind>[^']+)'",
                "srun has no MPI of type {kind} there: have it installed, or write mpi: none into the "
                "cluster's file",
            ),
        ),
        certain=False,
    ),
    Cause(
        "crash",
        (b"Segmentation fault", b"Caught signal ", b"Bus error", b"Fatal Python error: "),
        (
            (r"Fatal Python error: (?P<what>[^\r\n]+)", "the Python interpreter crashed: {what}"),
            (
                r"Segmentation fault|Caught signal|Bus error",
                "a process crashed (segmentation fault or bus error)",
            ),
        ),
        certain=False,
    ),
    Cause(
        "nan_grad_norm",
        (b"found NaN in local grad norm", b"found Inf in local grad norm"),
        (("found (?P<what>NaN|Inf)", "the gradient norm became {what} in the backward pass"),),
    ),
    Cause(
        "disk_full",
        (b"No space left on device", b"Disk quota exceeded"),
        (("(?P<what>No space left on device|Disk quota exceeded)", "writing failed: {what}"),),
        certain=False,
    ),
)

TRACEBACK_WORDS = (b"Traceback (most recent call last)", b"Error: ")
_TRACEBACK, _ERROR = TRACEBACK_WORDS
_EXCEPTION = re.compile(rb"(?:^|[\s\]:>])(?P<name>[A-Za-z_][\w.]{0,100}Error): ?(?P<text>.{0,300})")


class Tracebacks:
    """Reads the exception at the end of a Python traceback."""

    def __init__(self) -> None:
        self._open = False

    def read(self, line: bytes, *, explained: bool) -> Symptom | None:
        """The exception, when `line` is the one that ends an open traceback.

        `explained`: a known cause was found in the line already, which says more than the exception's name.
        """
        if _TRACEBACK in line:
            self._open = True
        match = _EXCEPTION.search(line) if self._open else None
        if match is None:
            return None
        self._open = False
        return None if explained else _traceback(quote(match["name"] + b": " + match["text"]))

    def finish(self) -> Symptom | None:
        """A traceback whose exception never came, or bears a name that does not end in Error."""
        return _traceback("its last line was not recognised") if self._open else None


def _traceback(what: str) -> Symptom:
    return Symptom("traceback", f"Python traceback: {what}", certain=False)


def quote(text: bytes) -> str:
    """Text of a log for people: valid, printable, and not endless."""
    decoded = text[:_LONGEST_QUOTE].decode(errors="replace").strip()
    return "".join(character if character.isprintable() else " " for character in decoded)
