"""Write the benchmark suites in a release's exemplar.yaml as sweeps, one for each type of GPU."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from steptime.recipes.importing.release import Release, UpstreamRecipe
from steptime.recipes.importing.workload import WRITTEN_BY, RecordedRun, flow, name_workload
from steptime.recipes.notation import parse_time_limit

_REPEATS = 3
"""Runs of each cell: upstream has one, but a confidence interval needs several."""
_SECONDS = 3600


def suites(
    release: Release, imported: Mapping[str, tuple[UpstreamRecipe, Sequence[RecordedRun]]]
) -> Iterator[tuple[str, str]]:
    """Yield the name and YAML text of a sweep for each GPU type in the release's exemplar.yaml.

    Runs that were not imported are left out, and listed in `release.left_out`.

    Args:
        release: if it has no exemplar.yaml, nothing is yielded.
        imported: the imported recipes with their runs, by the recipe's name in the release.
    """
    if not (release.folder / "exemplar.yaml").exists():
        return
    suite = yaml.safe_load(release.text("exemplar.yaml"))
    gpus = int(suite["config"]["scale"])
    for gpu_type, entries in suite["workloads"].items():
        dtypes: dict[tuple[str, str], list[str]] = defaultdict(list)
        lacking: dict[str, list[str]] = defaultdict(list)
        seconds = 0
        for entry in entries:
            for wanted, of in entry.items():
                for dtype in of["dtypes"]:
                    match = _find_run(imported, wanted, gpu_type, dtype, gpus)
                    if match is None:
                        lacking[wanted].append(dtype)
                        continue
                    source, row = match
                    dtypes[name_workload(release, source), row.sizes].append(row.dtypes)
                    seconds += parse_time_limit(row.job["executor"]["time"])
        for wanted, lacked in lacking.items():
            cells = f"exemplar.yaml, {wanted} {', '.join(lacked)} on {gpus} {gpu_type},"
            release.left_out[cells] = "is in no file that was imported"
        if dtypes:
            missing = sum(map(len, lacking.values()))
            yield f"exemplar-{gpu_type}", _text(release, gpu_type, gpus, dtypes, seconds, missing=missing)


def _find_run(
    imported: Mapping[str, tuple[UpstreamRecipe, Sequence[RecordedRun]]],
    wanted: str,
    gpu_type: str,
    dtype: str,
    gpus: int,
) -> tuple[UpstreamRecipe, RecordedRun] | None:
    for source, rows in imported.values():
        for row in rows:
            run = row.upstream
            named = f"pretrain_{source.name}_{run.size}"
            if (named, run.gpu_type, run.dtype, run.gpus) == (wanted, gpu_type, dtype, gpus):
                return source, row
    return None


def _text(
    release: Release,
    gpu_type: str,
    gpus: int,
    dtypes: Mapping[tuple[str, str], Sequence[str]],
    seconds: int,
    *,
    missing: int,
) -> str:
    number = sum(map(len, dtypes.values()))
    cells = f"{number} of its {number + missing} cells" if missing else f"{number} cells"
    fields: dict[str, Any] = {
        "name": f"exemplar-{gpu_type}",
        "description": f"NVIDIA Exemplar Cloud, {release.tag}, {cells}",
        "gpu_type": gpu_type,
        "repeats": _REPEATS,
        "gpu_hours_max": math.ceil(gpus * seconds * _REPEATS / _SECONDS),
        "confirm": False,
    }
    runs = [
        {"workload": workload, "size": size, "dtype": [*of_size], "gpus": gpus}
        for (workload, size), of_size in dtypes.items()
    ]
    return "\n".join(
        [
            f"{WRITTEN_BY} from NVIDIA/exemplar-performance {release.tag}, exemplar.yaml:",
            "# the next import replaces it. The release prints no step times of these cells to compare with.",
            *(f"{name}: {flow(value)}" for name, value in fields.items()),
            "runs:",
            *(f"  - {flow(run)}" for run in runs),
            "",
        ]
    )
