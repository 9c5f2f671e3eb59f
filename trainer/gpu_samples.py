"""`python -m trainer.gpu_samples FILE --gpus 0,1`: sample GPUs and links of a node, in a process of its own.

The first rank of each node starts this process before the first step. After the last step the rank writes two
Unix times as a line to the process's standard input, and gets a summary of the samples between them as a line
of JSON. The process ends when its standard input ends, so it cannot outlive the rank.

One nvidia-smi samples about once per second (`--loop=1`). `nvidia-smi --help-query-gpu` describes the fields
and units; from Ampere on, `power.draw` is the mean of one second. The bits of the reasons for reduced clocks
are NvmlClocksEventReasons in the NVML API reference. Error counters of InfiniBand and RoCE ports are those of
Linux (Documentation/ABI/stable/sysfs-class-infiniband) and of mlx5's `hw_counters`. The counters of ports and
NVLinks are read when the sampling starts and for the summary.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trainer import gpu_health, records
from trainer.spec import PlannedRun

FOLDER = "gpu_samples"
"""Folder below the job's folder, with a file for each node."""
FEWEST_STEPS = 20
"""Fewest steps to summarize, if the second half of the run has that many."""
INFINIBAND = Path("/sys/class/infiniband")
_FIELDS = (
    *("index", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu"),
    *("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
)
_REASONS_FIELDS = tuple(f"{name}.active" for name in gpu_health.CLOCK_REASONS)
_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
_PORT_COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    *("local_ack_timeout_err", "packet_seq_err"),
)
_NVLINK = re.compile(
    r"^GPU (?P<gpu>\d+):|"
    r"Link (?P<link>\d+): (?P<kind>[\w ]+ Errors|Tx discards|Link recovery failed events): (?P<count>\d+)"
)
"""Counters of NVLink: Replay, Recovery and CRC Errors up to Hopper, others from Blackwell on. Raw errors per
lane and FEC errors, which grow on healthy links, have other forms."""
_LOW_CLOCK = 0.95
"""A clock is low if it is below this share of the highest clock in the same GPU's samples."""
_ANSWERS_WITHIN_S = 30


class Sample(NamedTuple):
    """The state of one GPU at one time; a value is None if the GPU does not report it."""

    at: float
    """Unix time, seconds."""
    gpu: int
    power_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    corrected_ecc_errors: float | None
    uncorrected_ecc_errors: float | None
    reasons: int
    """Bits of `_REASONS`."""


class Sampler:
    """Samples the given GPUs of this node about once per second until it is stopped."""

    def __init__(self, file: Path, gpus: str) -> None:
        self.samples: list[Sample] = []
        self._file, self._gpus = file, gpus
        self._began_at = time.time()
        self._link_errors: dict[str, int] = {}
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Write samples to the file until nvidia-smi ends; return at once if there is no nvidia-smi."""
        self._link_errors = link_errors()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file, suppress(FileNotFoundError):
            print("unix_time", *_FIELDS, _REASONS_FIELDS[0], sep=",", file=file)
            for reasons in _REASONS_FIELDS:
                for line in self._lines(reasons):
                    at = time.time()
                    if (sample := read_sample(line, at)) is not None:
                        self.samples.append(sample)
                        print(f"{at:.3f}", line.strip(), sep=",", file=file, flush=True)
                if self.samples:  # else it does not know the field's name
                    return

    def _lines(self, reasons: str) -> Iterable[str]:
        query = f"--query-gpu={','.join((*_FIELDS, reasons))}"
        self._process = subprocess.Popen(
            ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--id={self._gpus}", "--loop=1"],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._process.stdout or ()

    def stop(self) -> None:
        """Stop sampling by ending nvidia-smi."""
        if self._process is not None:
            self._process.kill()

    def summary(self, began_at: float, ended_at: float) -> dict[str, Any] | None:
        """Summarize the samples between two Unix times, one list entry per GPU; None without samples.

        Powers and clocks are means; `least_sm_clock_mhz` is the lowest, `temperature_c` the highest sample.
        `slowed_percent` has the share of samples with each reason for reduced clocks. Errors are counted from
        the start of the sampling. `clocks_down_since` is that of the slowest GPU. `xid_errors` is None if the
        kernel's log cannot be read.
        """
        of_gpus: dict[int, list[Sample]] = {}
        for sample in self.samples:
            if began_at <= sample.at <= ended_at:
                of_gpus.setdefault(sample.gpu, []).append(sample)
        if not of_gpus:
            return None
        within = [of_gpus[gpu] for gpu in sorted(of_gpus)]
        first = {sample.gpu: sample for sample in reversed(self.samples)}
        last = {sample.gpu: sample for sample in self.samples}

        def each(name: str, combine: Callable[[Sequence[float]], float]) -> list[float | None]:
            known = [
                [v for sample in of_gpu if (v := getattr(sample, name)) is not None] for of_gpu in within
            ]
            return [round(combine(values), 2) if values else None for values in known]

        def since_first(name: str) -> list[int | None]:
            pairs = [(getattr(first[gpu], name), getattr(last[gpu], name)) for gpu in sorted(of_gpus)]
            return [None if None in pair else int(pair[1] - pair[0]) for pair in pairs]

        clocks = each("sm_clock_mhz", statistics.fmean)
        slowest = min(range(len(within)), key=lambda at: clocks[at] or float("inf"))
        return {
            "node": records.own_node_name(),
            "gpus": sorted(of_gpus),
            "samples": min(map(len, within)),
            "power_w": each("power_w", statistics.fmean),
            "sm_clock_mhz": clocks,
            "least_sm_clock_mhz": each("sm_clock_mhz", min),
            "clocks_down_since": clocks_down_since(within[slowest]),
            "memory_clock_mhz": each("memory_clock_mhz", statistics.fmean),
            "temperature_c": each("temperature_c", max),
            "slowed_percent": {
                name: [_percent(sample.reasons & bit for sample in of_gpu) for of_gpu in within]
                for bit, name in _REASONS.items()
                if any(sample.reasons & bit for of_gpu in within for sample in of_gpu)
            },
            "corrected_ecc_errors": since_first("corrected_ecc_errors"),
            "uncorrected_ecc_errors": since_first("uncorrected_ecc_errors"),
            "link_errors": {
                name: count - self._link_errors[name]
                for name, count in link_errors().items()
                if count > self._link_errors.get(name, count)
            },
            "xid_errors": self._xid_errors(),
        }

    def _xid_errors(self) -> list[str] | None:
        try:
            return gpu_health.hardware_errors((time.time() - self._began_at) / 3600)
        except gpu_health.CannotTell:
            return None


def read_sample(line: str, at: float) -> Sample | None:
    """Parse a line of nvidia-smi's output; None for its error messages."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_FIELDS) + 1 or not fields[0].isdecimal():
        return None
    index, *values, reasons = fields
    bits = int(reasons, 16) if re.fullmatch("0x[0-9a-fA-F]+", reasons) else 0
    power_w, sm_clock_mhz, memory_clock_mhz, temperature_c, corrected, uncorrected = map(
        gpu_health.number, values
    )
    return Sample(
        at=at,
        gpu=int(index),
        power_w=power_w,
        sm_clock_mhz=sm_clock_mhz,
        memory_clock_mhz=memory_clock_mhz,
        temperature_c=temperature_c,
        corrected_ecc_errors=corrected,
        uncorrected_ecc_errors=uncorrected,
        reasons=bits,
    )


def clocks_down_since(samples: Sequence[Sample]) -> float | None:
    """Return the Unix time since which a GPU's SM clock has stayed below 95 % of its highest sample.

    Return None if the last sample is not below that.
    """
    clocks = [(sample.at, sample.sm_clock_mhz) for sample in samples if sample.sm_clock_mhz is not None]
    since, highest = None, max((clock for _, clock in clocks), default=0.0)
    for at, clock in reversed(clocks):
        if clock >= _LOW_CLOCK * highest:
            break
        since = at
    return since


def link_errors() -> dict[str, int]:
    """Return the readable error counters of this node's network ports and NVLinks, by name."""
    errors: dict[str, int] = {}
    for name in _PORT_COUNTERS:
        for counter in INFINIBAND.glob(f"*/ports/*/*counters/{name}"):
            with suppress(OSError, ValueError):
                device, _, port, _, _ = counter.parts[-5:]
                errors[f"{device}/{port} {name}"] = int(counter.read_text(encoding="ascii"))
    with suppress(gpu_health.CannotTell, gpu_health.NodeFault):
        gpu = ""
        for line in gpu_health.run_tool(["nvidia-smi", "nvlink", "--errorcounters"]).splitlines():
            if match := _NVLINK.search(line.strip()):
                gpu = match["gpu"] or gpu
                if match["link"]:
                    kind = match["kind"].removesuffix(" Errors").lower()
                    errors[f"GPU {gpu} NVLink {match['link']} {kind}"] = int(match["count"])
    return errors


def sampled_steps(run: PlannedRun) -> range:
    """Return the global steps to summarize: the measurement window, or without one the last 20 steps.

    A window of fewer than 20 steps begins earlier here, because some workloads measure only the last step,
    which is too short for a sample. Steps of the run's first half are never added.
    """
    end = run.max_steps if run.window is None else run.window.last + 1
    begin = max((run.first_step + run.max_steps) // 2, end - FEWEST_STEPS)
    return range(begin if run.window is None else min(begin, run.window.first), end)


class SamplingProcess:
    """The process that samples the GPUs of this node; the node's first rank owns it."""

    def __init__(self, output: Path, ranks: int) -> None:
        """Start the process.

        Args:
            output: the job's folder.
            ranks: number of ranks on this node; each uses one of the GPUs that the job may use, in order.
        """
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(ranks)))).split(",")
        file = output / FOLDER / f"{records.own_node_name()}.csv"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.gpu_samples", str(file), f"--gpus={','.join(visible[:ranks])}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may keep nothing open that belongs to the job
            text=True,
        )

    def end(self, began_at: float | None, ended_at: float | None) -> dict[str, Any] | None:
        """End the process; return its summary of the samples between two Unix times.

        Return None if a time is None, there are no samples, or the process does not answer within 30 s.
        """
        request = None if began_at is None or ended_at is None else f"{began_at} {ended_at}\n"
        try:
            answer, _ = self._process.communicate(request, timeout=_ANSWERS_WITHIN_S)
            summary: dict[str, Any] | None = json.loads(answer)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self._process.kill()  # and no wait: that may last if the driver hangs
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                with suppress(OSError):
                    pipe.close()
            return None
        return summary


def main(argv: Sequence[str] | None = None) -> int:
    """Sample until standard input ends, or has a line with two Unix times to print the summary for."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.gpu_samples",
        description="Sample the GPUs of this node until a line comes: BEGIN END, in Unix time.",
    )
    parser.add_argument("file", type=Path, help="where to write the samples, as CSV")
    parser.add_argument("--gpus", required=True, help="indexes or UUIDs, with commas")
    arguments = parser.parse_args(argv)
    with suppress(OSError):  # not on the rank's own cores
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    sampler = Sampler(arguments.file, arguments.gpus)
    threading.Thread(target=sampler.run, daemon=True).start()
    request = sys.stdin.readline().split()
    if request:
        began_at, ended_at = map(float, request)
        print(json.dumps(sampler.summary(began_at, ended_at)), flush=True)
    sampler.stop()
    return 0


def _percent(active: Iterable[int]) -> float:
    return round(100 * statistics.fmean(map(bool, active)), 1)


if __name__ == "__main__":
    sys.exit(main())
