"""Train planned runs and read their results; needs only Python's standard library."""

import contextlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""Folder with `trainer/` and `benchmarks/`."""
MODEL_FILE, RUN_FILE, LOG_FILE, HISTORY_FILE = "model.json", "run.json", "log.out", "history.jsonl"
MEASUREMENT_FILE = "measurement.json"
WRONG_PLAN = 1
"""The trainer's exit code for what fails in every run: no GPU, no torchao."""
LAST_WORDS_S = 20
"""Seconds that a run has to write its reason after it is asked to end."""
NOTABLE_PERCENT = 3
"""Difference in percent from which a wall time is reported beside the step time."""


def write_whole(path: Path, content: str | dict[str, Any]) -> None:
    """Write a file atomically."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def measure(model: Path, output: Path, within_s: float, library: Path | None, options: list[str]) -> int:
    """Train a model's runs one after the other; 0 if all completed, 1 if none could, else 2.

    A run that fails does not keep the next from being trained, unless no run can be on this machine. What is
    not done after `within_s` seconds is ended.
    """
    if not (model / MODEL_FILE).is_file():
        print(f"'{model}' is no planned model: give a folder that `plan` wrote in its own.", file=sys.stderr)
        return 1
    plan = json.loads((model / MODEL_FILE).read_bytes())
    deadline = time.monotonic() + within_s
    place = output / model.name
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model / MODEL_FILE, place / MODEL_FILE)
    ended = []
    with _importable(library) as paths:
        for name in plan["runs"]:
            print(f"{model.name}, {name} …", flush=True)
            found = _train(model / name, place / name, deadline, paths, options)
            print(f"{found['state']} after {found['seconds']:.0f} s: {found['error'] or place / name}")
            ended.append(found)
            if found["exit_code"] == WRONG_PLAN:
                break
    report(output)
    if ended[-1]["exit_code"] == WRONG_PLAN:
        return 1
    return 0 if all(found["state"] == "completed" for found in ended) else 2


@contextlib.contextmanager
def _importable(library: Path | None) -> Iterator[list[str]]:
    """Return PYTHONPATH: trainer, this package, a library (a wheel is unpacked), then what was there."""
    with tempfile.TemporaryDirectory(prefix="one-gpu-") as folder:
        paths = [str(ROOT), str(ROOT / "benchmarks")]
        if library is not None and library.suffix == ".whl":
            with zipfile.ZipFile(library) as wheel:
                wheel.extractall(folder)
            paths.append(folder)
        elif library is not None:
            paths.append(str(library.resolve()))
        yield [*paths, *filter(None, [os.environ.get("PYTHONPATH")])]


def _train(
    planned: Path, place: Path, deadline: float, paths: list[str], options: list[str]
) -> dict[str, Any]:
    """Train one run in its own folder; return the measurement that it writes."""
    if place.exists():  # of an earlier try
        shutil.rmtree(place)
    place.mkdir()
    shutil.copyfile(planned / RUN_FILE, place / RUN_FILE)
    command = [sys.executable, "-m", "one_gpu.train", *options, "--output", str(place)]
    environment = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # memory is planned nearly full
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
    }
    began_at = time.monotonic()
    exit_code = None
    if began_at < deadline:
        with (place / LOG_FILE).open("wb") as log:
            process = subprocess.Popen(
                [*command, "--history", str(place / HISTORY_FILE), str(place / RUN_FILE)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            exit_code = _wait(process, deadline)
    found = _measurement(place, exit_code) | {"seconds": time.monotonic() - began_at}
    write_whole(place / MEASUREMENT_FILE, found)
    return found


def _wait(process: "subprocess.Popen[bytes]", deadline: float) -> int:
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LAST_WORDS_S)
        process.kill()
        return process.wait()


def _measurement(place: Path, exit_code: int | None) -> dict[str, Any]:
    """Return what a run's log and history show; times of the planned window are None if it is incomplete."""
    run = json.loads((place / RUN_FILE).read_bytes())
    records = _records(place / LOG_FILE)
    ended = records.get("result", {})
    if exit_code is None:
        ended = {"state": "not started", "error": "no time was left"}
    elif "state" not in ended:
        ended = {"state": "killed", "error": f"exit code {exit_code}, and the log has no word of the end"}
    first, last = run["window"]["first"], run["window"]["last"]
    steps = [step for step in _history(place / HISTORY_FILE) if first <= step["global_step"] <= last]
    times = [step["step_time_s"] for step in steps] if len(steps) == last - first + 1 else None
    return {
        "state": ended["state"],
        "error": ended["error"],
        "exit_code": exit_code,
        "window": [first, last],
        "step_time_mean_s": statistics.fmean(times) if times else None,
        "step_time_median_s": statistics.median(times) if times else None,
        "step_time_std_s": statistics.stdev(times) if times else None,
        "wall_time_median_s": statistics.median(step["wall_time_s"] for step in steps) if times else None,
        "loss": steps[-1]["loss"] if times else None,
        "peak_memory_bytes": ended.get("peak_memory_bytes"),
        "started": records.get("start"),
        "gpu": records.get("gpu"),
    }


def _records(log: Path) -> dict[str, dict[str, Any]]:
    """Return the trainer's records (`steptime.start {…}`) by kind."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    # A line that a kill has cut does not end in its brace.
    found = re.findall(r"^steptime\.(\w+) (\{.*\})$", text, re.MULTILINE)
    return {kind: json.loads(record) for kind, record in found}


def _history(path: Path) -> list[dict[str, Any]]:
    """Return the steps in full precision, without one that is truncated."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def report(results: Path) -> int:
    """Print the results of the models in a folder; return 2 if one is incomplete, 1 if there is none."""
    models = sorted(results.glob(f"*/{MODEL_FILE}"))
    if not models:
        print(f"'{results}' has no results: give the folder that `measure` wrote into.", file=sys.stderr)
        return 1
    print("| model | layers | step s | wall s | tokens/s | MFU % document | MFU % exact | memory GiB | |")
    print("|---|---|---|---|---|---|---|---|---|")
    complete = [_report_model(path.parent) for path in models]
    return 0 if all(complete) else 2


def _report_model(place: Path) -> bool:
    """Print the rows of one model; return whether both numbers of layers were measured."""
    plan = json.loads((place / MODEL_FILE).read_bytes())
    points: list[tuple[int, float, float]] = []
    for name, layers in zip(plan["runs"], plan["layers"][:2], strict=False):
        path = place / name / MEASUREMENT_FILE
        found: dict[str, Any] = {"state": "not measured", "error": None}
        if path.is_file():
            found = json.loads(path.read_bytes())
        if found["state"] != "completed":
            _row(place.name, layers, *[None] * 6, ": ".join(filter(None, (found["state"], found["error"]))))
            continue
        recipe = json.loads((place / name / RUN_FILE).read_bytes())["recipe"]
        mean, std, wall = (
            found[key] for key in ("step_time_mean_s", "step_time_std_s", "wall_time_median_s")
        )
        apart = 100 * (wall / found["step_time_median_s"] - 1)
        _row(
            place.name,
            layers,
            f"{mean:.4g} ± {std:.2g}",
            wall,
            recipe["global_batch_size"] * recipe["model"]["seq_length"] / mean,
            *_mfus(plan, recipe, len(points), mean),
            found["peak_memory_bytes"] / 2**30,
            f"wall time {apart:+.1f} %" if abs(apart) > NOTABLE_PERCENT else "",
        )
        points.append((layers, mean, std / math.sqrt(found["window"][1] - found["window"][0] + 1)))
    if len(points) < 2:
        return False
    layer_s, once_s, error_s = slope(points[0], points[1])
    _row(place.name, "each", f"{layer_s:.4g} ± {error_s:.2g}", *[None] * 5, "the difference of the two")
    _row(place.name, "none", once_s, *[None] * 5, "embedding, output and loss, with their share of Adam")
    whole = plan["layers"][2]
    whole_s = once_s + whole * layer_s
    _row(
        place.name,
        whole,
        whole_s,
        None,
        recipe["global_batch_size"] * recipe["model"]["seq_length"] / whole_s,
        *_mfus(plan, recipe, 2, whole_s),
        None,
        "extrapolated, on one GPU" + _published(plan["published"]),
    )
    return True


def slope(few: tuple[int, float, float], many: tuple[int, float, float]) -> tuple[float, float, float]:
    """Seconds of a layer, of the rest, and the standard error of the first.

    Of two depths: layers, step time, its standard error.
    """
    layers = many[0] - few[0]
    layer_s = (many[1] - few[1]) / layers
    return layer_s, few[1] - few[0] * layer_s, math.hypot(few[2], many[2]) / layers


def _mfus(plan: dict[str, Any], recipe: dict[str, Any], depth: int, step_time_s: float) -> list[float | None]:
    """Return the MFU by the document's and by the exact formula; `depth` is an index of layer counts."""
    if plan["peak_tflops"] is None:
        return [None, None]
    return [
        100 * recipe["global_batch_size"] * plan["flops_per_sample"][name][depth]
        / step_time_s / 1e12 / plan["peak_tflops"]
        for name in ("document", "exact")
    ]  # fmt: skip


def _published(published: dict[str, Any] | None) -> str:
    if published is None:
        return ""
    return f"; published {published['mfu_percent']} on {published['gpus']}, by {published['formula']}"


def _row(*cells: object) -> None:
    shown = [
        f"{cell:.4g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in cells
    ]
    print(f"| {' | '.join(shown)} |")
