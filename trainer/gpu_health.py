"""GPU health of a node: the table of nvidia-smi and the GPU errors in the kernel log."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60
"""Time limit of a program; it is long because a driver in trouble answers late or never."""

_FIELDS = (
    *("index", "name", "memory.total", "memory.free", "power.limit", "power.default_limit"),
    *("clocks.applications.graphics", "clocks.default_applications.graphics"),
    "ecc.errors.uncorrected.volatile.total",
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.hw_power_brake_slowdown",
)
"""Fields of `nvidia-smi --help-query-gpu`, in MiB, W and MHz; missing values are `[N/A]`."""
CLOCK_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
"""First word of the fields with the reasons for low clocks: in current drivers, and in R525 and before."""

_BROKEN_GPU = {
    8: "a GPU's external power cables are not attached",
    9: "the NVIDIA driver is not loaded",
    10: "the kernel found an interrupt issue with a GPU",
    14: "a GPU's infoROM is corrupted",
    15: "a GPU has fallen off the bus or cannot be reached",
}
"""Exit codes of nvidia-smi (its manual, RETURN VALUE) that mean a fault of the node."""

_HARDWARE_XIDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping failure",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Xid errors of the hardware (NVIDIA's catalogue of Xid errors). Others, such as 13, 31, 43 and 45, are
left by programs that failed, on a healthy node."""
_XID = re.compile(r"\[\s*(?P<at_s>\d+\.\d+)\] NVRM: Xid \(PCI:(?P<device>[^)]*)\): (?P<xid>\d+)")


UPTIME = Path("/proc/uptime")
"""File with the seconds since boot; times in the kernel's log are seconds since boot, too."""


class CannotTell(Exception):
    """The state of the node cannot be determined here; this is not a fault of the node."""


class NodeFault(Exception):
    """The node itself reports a fault."""


@dataclass(frozen=True)
class Gpu:
    """One GPU in nvidia-smi's table.

    A number that the GPU or its driver does not report is None, a slowdown that is not reported is False.
    """

    index: str
    name: str
    memory_mib: float | None
    free_memory_mib: float | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    clock_mhz: float | None
    """The application clock, which the driver aims for under load."""
    default_clock_mhz: float | None
    uncorrected_ecc_errors: float | None
    """Number of errors since the driver was loaded."""
    slowed_by_heat: bool
    slowed_by_power_brake: bool


@dataclass(frozen=True)
class Demands:
    """Requirements for a node's GPUs: type, number, and minimum values.

    The minimum free memory is in percent of the GPU's memory, those of power limit and clock in percent of
    the GPU's defaults.
    """

    product: str
    """A word in the GPU's name, such as H100."""
    count: int
    free_memory_percent: float
    power_limit_percent: float
    clock_percent: float


def gpus_here() -> list[Gpu]:
    """Return the GPUs of this node, from nvidia-smi.

    Raises:
        NodeFault: nvidia-smi reports a broken GPU.
        CannotTell: nvidia-smi is missing, or does not support the query.
    """
    current, old = CLOCK_REASONS
    query = f"--query-gpu={','.join(_FIELDS)}"
    try:
        table = run_tool(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    except CannotTell as error:
        if f'"{current}' not in str(error):
            raise
        table = run_tool(["nvidia-smi", query.replace(current, old), "--format=csv,noheader,nounits"])
    return [_gpu([field.strip() for field in line.split(",")]) for line in table.splitlines()]


def find_faults(gpus: Sequence[Gpu], demands: Demands) -> Iterator[str]:
    """Yield a phrase for each fault: missing GPUs, a wrong type, ECC errors, slowdown, a low value.

    Values that a GPU does not report are not checked.
    """
    if len(gpus) < demands.count:
        yield f"nvidia-smi shows {len(gpus)} GPUs, and {demands.count} are needed"
    for gpu in gpus:
        if not re.search(rf"\b{re.escape(demands.product)}\b", gpu.name):
            yield f"GPU {gpu.index} is '{gpu.name}', and {demands.product} is planned"
        if gpu.uncorrected_ecc_errors:
            yield f"GPU {gpu.index} has {gpu.uncorrected_ecc_errors:g} uncorrected ECC errors"
        if gpu.slowed_by_heat:
            yield f"GPU {gpu.index} is slowed down by its heat"
        if gpu.slowed_by_power_brake:
            yield f"GPU {gpu.index} is slowed down by its power supply"
        for what, value, whole, least in (
            ("free memory", gpu.free_memory_mib, gpu.memory_mib, demands.free_memory_percent),
            ("power limit", gpu.power_limit_w, gpu.default_power_limit_w, demands.power_limit_percent),
            ("application clock", gpu.clock_mhz, gpu.default_clock_mhz, demands.clock_percent),
        ):
            if value is not None and whole and 100 * value / whole < least:
                yield (
                    f"the {what} of GPU {gpu.index} is {value:g} of {whole:g} {_UNITS[what]}, "
                    f"below {least:g} %"
                )


_UNITS = {"free memory": "MiB", "power limit": "W", "application clock": "MHz"}


def hardware_errors(within_h: float) -> list[str]:
    """Return the Xid hardware errors of the last hours in the kernel's log, a phrase for each GPU and kind.

    Raises:
        CannotTell: the kernel's log cannot be read, which needs a privilege on most machines.
    """
    log = run_tool(["dmesg"])
    now_s = float(UPTIME.read_text(encoding="ascii").split()[0])
    errors = {
        f"Xid {xid} ({_HARDWARE_XIDS[xid]}) of the GPU at PCI {error['device']}"
        for error in _XID.finditer(log)
        if (xid := int(error["xid"])) in _HARDWARE_XIDS and now_s - float(error["at_s"]) <= within_h * 3600
    }
    return sorted(errors)


def free_memory_percent() -> float:
    """Return the percentage of this node's memory that is available without swapping."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return 100 * kib["MemAvailable"] / kib["MemTotal"]


def run_tool(command: list[str]) -> str:
    """Run a program and return its output.

    Raises:
        CannotTell: it is missing, fails, or does not answer.
        NodeFault: nvidia-smi reports a broken GPU.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise CannotTell(f"the program {command[0]} is not on this node") from None
    except subprocess.TimeoutExpired:
        raise CannotTell(f"{command[0]} did not answer within {_TIMEOUT_S} s") from None
    if done.returncode == 0:
        return done.stdout
    message = " ".join((done.stderr or done.stdout).split())
    if command[0] == "nvidia-smi" and done.returncode in _BROKEN_GPU:
        raise NodeFault(f"nvidia-smi: {_BROKEN_GPU[done.returncode]}{f' ({message})' if message else ''}")
    raise CannotTell(f"{command[0]} ended with exit code {done.returncode}: {message}")


def _gpu(row: list[str]) -> Gpu:
    if len(row) != len(_FIELDS):
        raise CannotTell(f"nvidia-smi printed {len(row)} fields instead of {len(_FIELDS)}: {row}")
    values = dict(zip(_FIELDS, row, strict=True))
    return Gpu(
        index=values["index"],
        name=values["name"],
        memory_mib=number(values["memory.total"]),
        free_memory_mib=number(values["memory.free"]),
        power_limit_w=number(values["power.limit"]),
        default_power_limit_w=number(values["power.default_limit"]),
        clock_mhz=number(values["clocks.applications.graphics"]),
        default_clock_mhz=number(values["clocks.default_applications.graphics"]),
        uncorrected_ecc_errors=number(values["ecc.errors.uncorrected.volatile.total"]),
        slowed_by_heat=values["clocks_event_reasons.hw_thermal_slowdown"] == "Active",
        slowed_by_power_brake=values["clocks_event_reasons.hw_power_brake_slowdown"] == "Active",
    )


def number(text: str) -> float | None:
    """Parse a number; None for `[N/A]`, `[Not Supported]` and the like."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
