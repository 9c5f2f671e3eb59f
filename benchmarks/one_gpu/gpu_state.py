"""The state of the GPU during training: clocks, power and temperature, as nvidia-smi reports them."""

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Iterator

from trainer.records import emit

INTERVAL_MS = 500
FIELDS = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
"""steptime's name, with the unit, of each field of nvidia-smi that changes."""
FIXED = {
    "name": "name",
    "driver_version": "driver_version",
    "clocks.max.sm": "sm_clock_max_mhz",
    "power.limit": "power_limit_w",
}
"""steptime's name of each field of nvidia-smi that does not change."""


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Read the state of the first GPU every half second, and write a record `steptime.gpu` at the end.

    If nvidia-smi is not there or prints nothing, the record has that.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        try:
            watcher = subprocess.Popen(
                _query([*FIXED, *FIELDS], f"--loop-ms={INTERVAL_MS}"), stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            emit("gpu", {"error": f"nvidia-smi could not be started: {error.strerror}"})
            yield
            return
        try:
            yield
        finally:
            watcher.terminate()
            watcher.wait()
            output.seek(0)
            emit("gpu", summary(output.read()))


def _query(fields: list[str], *options: str) -> list[str]:
    return [
        "nvidia-smi",
        "--id=0",
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader,nounits",
        *options,
    ]


def summary(text: str) -> dict[str, object]:
    """Summarize nvidia-smi's lines: fixed values, and lowest, mean and highest of the changing ones."""
    names = [*FIXED, *FIELDS]
    rows = [dict(zip(names, line.split(", "), strict=False)) for line in text.splitlines()]
    rows = [row for row in rows if len(row) == len(names)]  # the last may be cut
    if not rows:
        return {"error": f"nvidia-smi printed nothing: {text.strip()[:200] or 'no output'}"}
    state: dict[str, object] = {ours: rows[-1][theirs] for theirs, ours in FIXED.items()}
    for theirs, ours in FIELDS.items():
        values = [float(row[theirs]) for row in rows if _is_number(row[theirs])]
        if values:  # nvidia-smi writes [N/A] for what this GPU does not report
            state[ours] = {
                "lowest": min(values),
                "mean": round(statistics.fmean(values), 1),
                "highest": max(values),
            }
    return {**state, "samples": len(rows)}


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
