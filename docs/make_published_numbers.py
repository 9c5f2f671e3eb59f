"""Write the table of published-numbers.md from the data: `python docs/make_published_numbers.py`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from steptime.measure.metrics import throughput
from steptime.recipes import tables
from steptime.recipes.models import Recipe
from steptime.recipes.published import (
    AsPublished,
    Decimals,
    PerformanceRow,
    load_reference,
    published_performance,
)
from steptime.recipes.workload_file import Workload
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.store.run_models import Measurement

PAGE = Path(__file__).with_name("reference") / "published-numbers.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

NUMBERS = {
    "tokens_per_s": "tokens/s",
    "tflops_per_gpu": "TFLOPS",
    "mfu_percent": "MFU",
    "days_per_1t_tokens": "days",
}
"""Columns of a document that follow from a step time and its formula."""


def table() -> str:
    """Return a row for each document: what it prints, how much can be computed from it, and what differs."""
    lines = [
        "| document | rows | numbers that come out as printed | printed otherwise |",
        "|---|---|---|---|",
    ]
    lines += [_line(load_workload(name)) for name in list_workloads() if _is_published(load_workload(name))]
    return "\n".join(lines) + "\n"


def _is_published(workload: Workload) -> bool:
    return any(rule.printed is not None for _, rule in workload.recipes())


def _line(workload: Workload) -> str:
    rows = sum(1 for _ in tables.published_rows(workload))
    timed = [(recipe, row) for recipe, _ in workload.recipes() if (row := published_performance(recipe))]
    if not timed:
        return f"| `{workload.workload}` | {rows} | none printed | {_cells(workload)} |"
    decimals = load_reference(workload.workload).decimals
    if any(row.tokens_per_s_per_gpu for _, row in timed):
        printed = [row for _, row in timed]
        odd = [
            f"{_of(row)}: {row.tokens_per_s_per_gpu} tokens/s, {fitting} go with its TFLOPS"
            for row, fitting in odd_tokens(printed)
        ]
        found = f"tokens/s/GPU and TFLOPS go together in {len(timed) - len(odd)} of {len(timed)}"
    else:
        found, odd = _numbers(timed, decimals)
    otherwise = "<br>".join(filter(None, [*odd, _cells(workload)]))
    return f"| `{workload.workload}` | {rows} | {found} | {otherwise} |"


def _numbers(timed: Sequence[tuple[Recipe, PerformanceRow]], decimals: Decimals) -> tuple[str, list[str]]:
    """Return how many numbers follow from printed step times, and those that do not."""
    found, odd = [], []
    for field, name in NUMBERS.items():
        digits = 0 if field == "tokens_per_s" else getattr(decimals, field)
        printed = [(recipe, row) for recipe, row in timed if getattr(row, field) is not None]
        computed = {row: _computed(recipe, row, field) for recipe, row in printed}
        if None in computed.values():
            found.append(f"{name}: {len(printed)} of the log, which nothing else gives")
            continue
        fits = {row for row, value in computed.items() if round(value or 0, digits) == getattr(row, field)}
        odd += [
            f"{_of(row)}: {name} {getattr(row, field):,}, computed {value:,.{digits}f}"
            for row, value in computed.items()
            if row not in fits
        ]
        if printed:
            found.append(f"{name}{f' to {digits} decimals' * bool(digits)}: {len(fits)} of {len(printed)}")
    if any(load_reference(row.document).as_published != AsPublished() for _, row in timed):
        stated = {row: _rates(recipe, row).mfu_percent or 0 for recipe, row in timed}
        fits = {row for row, mfu in stated.items() if round(mfu, decimals.mfu_percent) == row.mfu_percent}
        found.append(f"MFU by the constants that it prints: {len(fits)} of {len(timed)}")
    return "<br>".join(found), odd


def _computed(recipe: Recipe, row: PerformanceRow, field: str) -> float | None:
    """Compute with the constants that the document must have used, if they differ from the printed ones."""
    of_field = "model_tflops_per_gpu" if field == "tflops_per_gpu" else field
    value: float | None = getattr(_rates(recipe, row, as_published=True), of_field)
    return value


def _rates(recipe: Recipe, row: PerformanceRow, *, as_published: bool = False) -> Measurement:
    return throughput(recipe, row.step_time_s or 0, as_published=as_published)


def _of(row: PerformanceRow) -> str:
    return f"{row.size} {row.dtype} on {row.gpus} × {row.gpu_type}"


def odd_tokens(rows: Sequence[PerformanceRow]) -> Iterator[tuple[PerformanceRow, int]]:
    """Rows whose TFLOPS are not of their tokens, with the tokens that go with them.

    TFLOPS over tokens are a model's, to a TFLOPS and as far as tokens are rounded: some documents round
    them to what all of them are multiples of.
    """
    for size in dict.fromkeys(row.size for row in rows):
        of_size = [row for row in rows if row.size == size]
        half = math.gcd(*(row.tokens_per_s_per_gpu or 0 for row in of_size)) / 2
        spans = {row: _span(row, half) for row in of_size}
        together = max((_fitting(spans, low) for low, _ in spans.values()), key=len)
        ratio = (max(spans[row][0] for row in together) + min(spans[row][1] for row in together)) / 2
        for row in of_size:
            if row not in together:
                yield row, round((row.tflops_per_gpu or 0) / ratio)


def _fitting(spans: Mapping[PerformanceRow, tuple[float, float]], ratio: float) -> set[PerformanceRow]:
    return {row for row, (low, high) in spans.items() if low <= ratio <= high}


def _span(row: PerformanceRow, half: float) -> tuple[float, float]:
    tokens, tflops = row.tokens_per_s_per_gpu or 0, row.tflops_per_gpu or 0
    return (tflops - 1) / (tokens + half), (tflops + 1) / (tokens - half)


def _cells(workload: Workload) -> str:
    """Return the cells of its configuration tables that differ from what its own launch code runs."""
    differing: dict[tuple[str, str, object, object], list[int]] = {}
    pairs = ((recipe, rule) for recipe, rule in workload.recipes() if rule.printed is not None)
    for (recipe, _), printed in zip(pairs, tables.published_rows(workload), strict=True):
        runs = tables.row(recipe)
        for column in ("seq_len", "layers", "tp", "pp", "cp", "ep", "etp", "dp", "mbs", "gbs", "ga"):
            if isinstance(printed[column], int) and runs[column] not in (printed[column], None):
                where = (f"{recipe.size} on {recipe.gpu_type}", column, printed[column], runs[column])
                differing.setdefault(where, []).append(recipe.gpus)
    return "<br>".join(
        f"{where}, {', '.join(map(str, dict.fromkeys(gpus)))} GPUs: {column} {printed}, runs {runs}"
        for (where, column, printed, runs), gpus in differing.items()
    )


def page() -> str:
    """Return the page with the current table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
