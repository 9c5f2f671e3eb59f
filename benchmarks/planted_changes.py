"""What is reported of half years in which changes are planted, and of half years in which nothing changes.

    python benchmarks/planted_changes.py [--planted 20] [--unchanged 10] [--first-seed 0]

A half year is a weekly sweep of 60 cells on two clusters, with 1 % noise. Each suspected cell gets two fresh
runs on other nodes. Runs are made up; all that judges them is the product's. Prints how often each planted
change was found, with the right cause and date, and what was reported that was not planted.
"""

import argparse
import json
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any, cast

from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_judgements
from steptime.judging.detection import CONFIRMATION_RUNS, FEWEST_RUNS, SeriesState, judge
from steptime.judging.findings import Comparison
from steptime.judging.incident_updates import close_returned, group_findings, reconcile
from steptime.judging.incidents import ACTIVE, Incident
from steptime.judging.judgements import SeriesRecords, judge_runs
from steptime.judging.missing_cells import LOOK_BACK_S, MissingCell, completeness
from steptime.judging.node_effects import NodeRun, as_evidence, node_runs
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.store.columns import COLUMNS, series_columns
from steptime.store.run_queries import Store

WEEKS, LAST = 26, 25
STARTED_AT = 1_780_000_000.0
NOISE, MUCH_NOISE = 0.01, 0.08
NODES = {"hopper": 100, "blackwell": 60}
GPUS_PER_NODE = 8
BAD_NODE = "hopper017"
LATEST_RUNS = 6
"""Newest runs of a cell that a comparison looks at."""
IMAGE = "nvcr.io/nvidia/nemo:26.06.01"
MODELS = {
    "hopper": {
        "8b": (8, 16, 32, 64, 128, 256),
        "15b": (16, 32, 64, 128, 256, 512),
        "56b": (32, 64, 128, 256, 512),
        "70b": (64, 128, 256, 512, 768),
    },
    "blackwell": {"21b": (8, 16, 32, 64), "235b": (64, 128), "30b": (8,)},
}
"""GPU counts of each size; each runs in two number formats."""
SAVE = ("70b", 256, "bf16", "checkpoint_save")

Key = tuple[str, int, str, str]
"""Size, GPUs, number format and mode of a cell."""


@cache
def cells() -> dict[Key, Series]:
    """Return the 60 cells."""
    keys = [
        (cluster, (size, gpus, dtype, "performance"))
        for cluster, sizes in MODELS.items()
        for size, scales in sizes.items()
        for gpus in scales
        for dtype in ("bf16", "fp8")
    ]
    keys += [("hopper", SAVE), ("hopper", (*SAVE[:3], "checkpoint_load"))]
    found = {}
    for cluster, key in keys:
        values = dict(zip(("size", "gpus", "dtype", "mode"), key, strict=True))
        spread = dict.fromkeys(series_columns("spread"), 1)
        rest = {"cluster": cluster, "gpu_type": "h100", "workload": "w", "proxy": False, "scaling": "weak"}
        rest |= {"for_judging": True}
        found[key] = Series.from_row(dict.fromkeys(series_columns()) | spread | rest | values)
    assert len(found) == 60
    return found


@dataclass(frozen=True)
class Planted:
    """A planted change of one kind in some cells."""

    name: str
    cells: tuple[Key, ...]
    week: int
    """The week from which on the cells have another level."""
    step: float
    change: tuple[str, str] | None = None
    """What is set from then on: `image`, `driver` or the name of a variable, and its value."""
    cause: str | None = None
    """What the cause of several cells or the changes of one cell must name; None if nothing is known."""
    until: int = WEEKS
    """The first week in which the cells have their earlier level again."""
    drifts: int = 0
    """Number of weeks over which the level changes evenly; 0 if it is a step."""
    set_in: tuple[Key, ...] = ()
    """The cells in which `change` is set; by default `cells`."""

    def level(self, week: int) -> float:
        """Return the relative change in a week."""
        if not self.week <= week < self.until:
            return 0.0
        return self.step * min(1.0, (week - self.week + 1) / self.drifts) if self.drifts else self.step


@dataclass(frozen=True)
class PlantedNode:
    """A node that slows the runs on it for some weeks."""

    node: str
    weeks: range
    step: float


def performance(size: str, gpus: int, dtype: str) -> Key:
    """Return the key of a cell that trains."""
    return (size, gpus, dtype, "performance")


_BLACKWELL = [key for key, series in cells().items() if series["cluster"] == "blackwell"]
ODD_ONE = performance("30b", 8, "fp8")
ALTERNATING = performance("8b", 128, "fp8")
NOISY = (performance("8b", 8, "bf16"), performance("56b", 512, "fp8"))
LUCKY = performance("56b", 64, "bf16")
PLANTED = (
    Planted(
        "new image, 13 of 14 cells +3 %, 2 weeks ago",
        tuple(key for key in _BLACKWELL if key != ODD_ONE),
        *(24, 0.03, ("image", IMAGE), IMAGE),
        # The image is new for all cells of its cluster.
        set_in=tuple(_BLACKWELL),
    ),
    Planted("the 14th cell +4 %, 8 weeks ago", (ODD_ONE,), 18, 0.04, ("NCCL_ALGO", "Ring"), "NCCL_ALGO"),
    Planted(
        "one variable, 4 cells of one size and data type +4 %, last week",
        tuple(performance("15b", gpus, "fp8") for gpus in (16, 32, 64, 128)),
        *(25, 0.04, ("NVTE_FP8_DPA_BWD", "0"), "NVTE_FP8_DPA_BWD"),
    ),
    Planted("checkpoint save +30 %, 3 weeks ago, nothing recorded", (SAVE,), 23, 0.3),
    Planted(
        "+2 %, 5 weeks ago, with a variable",
        (performance("70b", 256, "bf16"), performance("70b", 64, "fp8")),
        *(20, 0.02, ("NCCL_P2P_NET_CHUNKSIZE", "1"), "NCCL_P2P_NET_CHUNKSIZE"),
    ),
    Planted("+2 %, 5 weeks ago, nothing recorded", (performance("8b", 64, "bf16"),), 20, 0.02),
    Planted("+6 %, right after a lucky run", (LUCKY,), 22, 0.06, ("NCCL_IB_QPS", "4"), "NCCL_IB_QPS"),
    Planted(
        "+25 % in a cell with 8 % noise, 9 weeks ago", (NOISY[1],), 16, 0.25, ("NCCL_NVLS", "0"), "NCCL_NVLS"
    ),
)
FAR_ENOUGH = 0.04
"""A relative step that is found in most cells."""
NODE = "bad node, +6 %, last week"
BAD_NODES = (PlantedNode(BAD_NODE, range(LAST, WEEKS), 0.06),)


@dataclass(frozen=True)
class PlantedFailure:
    """A cell whose runs are rejected for some weeks."""

    cell: Key
    weeks: range
    reason: str


@dataclass
class HalfYear:
    """The runs of all cells, and how they were made."""

    seed: int
    plants: tuple[Planted, ...] = PLANTED
    """() for a half year without changes."""
    nodes: tuple[PlantedNode, ...] = BAD_NODES
    failures: tuple[PlantedFailure, ...] = ()
    runs: dict[Key, list[SeriesRun]] = field(default_factory=lambda: defaultdict(list))
    weeks: dict[str, int] = field(default_factory=dict)
    """The week of each job."""
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """All runs as the store returns them, rejected ones included, oldest first."""
    records: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str | None] = field(default_factory=dict)
    series_states: dict[Key, SeriesState] = field(default_factory=dict)
    judgements: dict[Key, list[Judgement]] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    """All incidents that were opened."""
    opened: dict[int, int] = field(default_factory=dict)
    """The week in which each incident was opened."""
    confirmed: dict[int, int] = field(default_factory=dict)

    def run_week(self, week: int) -> None:
        """Run each cell once, and twice more if it is suspected then."""
        for place, key in enumerate(cells()):
            failed = [one.reason for one in self.failures if one.cell == key and week in one.weeks]
            if failed:
                self._fail(key, week, place, failed[0])
                continue
            nodes = self._run(key, week, place, 0, ())
            for number in range(1, 1 + CONFIRMATION_RUNS):
                if (
                    self.series_states[key].suspicion is None
                    or self.judged(key)[-1].series_state.suspicion is None
                ):
                    break
                self._run(key, week, place, number, nodes)

    def judged(self, key: Key) -> list[Judgement]:
        """Judge the runs of a cell."""
        runs = self.runs[key]
        if len(self.judgements.get(key, ())) != len(runs):
            records = SeriesRecords(self.records.__getitem__, lambda: self.hashes)
            self.judgements[key] = judge_runs(runs, records)
        return self.judgements[key]

    def compare(self) -> Comparison:
        """Compare all cells that ran in the newest week in their current state."""
        newest = self.weeks[self.rows[-1]["job_name"]]
        stand = {
            series: self.judged(key)[: -LATEST_RUNS - 1 : -1]
            for key, series in cells().items()
            if self.weeks[self.runs[key][-1].job_name] == newest
        }
        return compare_judgements(stand, self.records.__getitem__)

    def missing(self, found: Comparison, week: int) -> list[MissingCell]:
        """Return the cells of a week's comparison that failed."""
        since = week - LOOK_BACK_S / WEEK_S
        ran, before = (
            [row for row in self.rows[::-1] if self.weeks[row["job_name"]] in weeks]
            for weeks in (range(week, week + 1), range(int(since), week))
        )
        reasons = cast("Store", _Reasons({row["job_name"]: row["reason"] for row in ran}))
        told = completeness(reasons, found.series_states, ran, before, recent={}, now=ran[0]["submitted_at"])
        return [*told.failed, *told.failed_since, *told.not_run]

    def node_runs(self) -> list[NodeRun]:
        """Return the newest runs of all training cells, as evidence on nodes."""
        return [
            run
            for key, series in cells().items()
            for run in node_runs(series, as_evidence(self.judged(key)[-LATEST_RUNS:]))
        ]

    def update_incidents(self, found: Comparison, week: int) -> None:
        """Open, change and close incidents, as each week's report does."""
        now = STARTED_AT + week * WEEK_S + WEEK_S / 2
        keys = {series: key for key, series in cells().items()}
        active = [one for one in self.incidents if one.state in ACTIVE]
        updated, merged = reconcile(
            active,
            found,
            group_findings(found),
            lambda series: self.judged(keys[series])[::-1],
            runs_on_nodes=self.node_runs(),
            now=now,
        )
        gone = {one.id for one in (*active, *merged)}
        self.incidents = [one for one in self.incidents if one.id not in gone]
        for one in updated:
            number = len(self.opened) if one.id is None else one.id
            self.opened.setdefault(number, week)
            if one.state == "confirmed":
                self.confirmed.setdefault(number, week)
            self.incidents.append(replace(close_returned(one, now, lambda _: False), id=number))

    def _run(self, key: Key, week: int, place: int, number: int, without: tuple[str, ...]) -> tuple[str, ...]:
        rng = random.Random(f"{self.seed} {key} {week} {number}")  # noqa: S311 - step times, not secrets
        cluster = cells()[key]["cluster"]
        every = [f"{cluster}{node:03}" for node in range(1, NODES[cluster] + 1)]
        wanted, others = key[1] // GPUS_PER_NODE, [node for node in every if node not in without]
        nodes = tuple(sorted(rng.sample(others if len(others) >= wanted else every, wanted)))
        seconds = rng.gauss(1, MUCH_NOISE if key in NOISY else NOISE)
        made = {"commit": f"{week // 3:040}", "driver": "570" if week < 12 else "580"}
        if self.plants:
            seconds = self._level(key, week, nodes, rng, seconds)
            made |= {
                name: value
                for one in self.plants
                if one.week <= week < one.until and one.change and key in (one.set_in or one.cells)
                for name, value in [one.change]
            }
        job = f"{'-'.join(map(str, key))}-{week:02}{'abc'[number]}"
        submitted_at = STARTED_AT + week * WEEK_S + 60 * place + 3600 * number
        row = self._add(key, week, job, nodes=", ".join(nodes), submitted_at=submitted_at, state="valid")
        self.runs[key].append(SeriesRun(row, seconds, "median of steps 30 to 49"))
        self.records[job] = _record(made, nodes)
        self.hashes[job] = json.dumps(made)
        self.series_states[key] = judge(self.series_states.get(key, SeriesState()), seconds)
        return nodes

    def _fail(self, key: Key, week: int, place: int, reason: str) -> None:
        at = STARTED_AT + week * WEEK_S + 60 * place
        job = f"{'-'.join(map(str, key))}-{week:02}x"
        self._add(key, week, job, submitted_at=at, state="rejected", reason=reason)

    def _add(self, key: Key, week: int, job: str, **values: Any) -> dict[str, Any]:
        row = dict.fromkeys(column.name for column in COLUMNS) | cells()[key].key
        row |= {"job_name": job} | values
        self.rows.append(row)
        self.weeks[job] = week
        return row

    def _level(
        self, key: Key, week: int, nodes: tuple[str, ...], rng: random.Random, seconds: float
    ) -> float:
        for one in self.plants:
            if key in one.cells:
                seconds *= 1 + one.level(week)
        if self.plants is PLANTED and key == LUCKY and week == 21:  # the run before the step
            seconds = 0.965
        if key == ALTERNATING:
            seconds *= rng.choice([1.0, 1.04])
        for bad in self.nodes:
            if bad.node in nodes and week in bad.weeks:
                seconds *= 1 + bad.step
        return seconds


@dataclass
class _Reasons:
    """In place of a store that has the reasons of rejected runs, by job name, and no logs."""

    reasons: Mapping[str, str | None]

    def parsed_logs(self, _names: Collection[str]) -> dict[str, Any]:
        """Return no logs."""
        return {}

    def lost_jobs(self, **_: float) -> list[dict[str, Any]]:
        """Return no jobs."""
        return []

    def failed_checks(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the reason of each run."""
        return {name: [reason] for name in names if (reason := self.reasons[name])}


def _record(made: Mapping[str, str], nodes: tuple[str, ...]) -> str:
    """Return the parts of a record that the product reads."""
    image = made.get("image", "nvcr.io/nvidia/nemo:26.04")
    variables = {name: value for name, value in made.items() if name.isupper()}
    provenance = {
        "staged": {"image": image},
        "environment": variables,
        "steptime_version": "1",
        "git_commit": made["commit"],
    }
    versions = {"driver": made["driver"], "nccl": "2.29" if image == IMAGE else "2.28"}
    return json.dumps({"run": {}, "nodes": list(nodes), "versions": versions, "provenance": provenance})


def half_year(seed: int, *, planted: bool) -> HalfYear:
    """Return the runs of a half year."""
    made = HalfYear(seed) if planted else HalfYear(seed, (), ())
    for week in range(WEEKS):
        made.run_week(week)
    return made


def ran_on_bad_node(made: HalfYear) -> set[Key]:
    """Return the cells that ran on the bad node in the last week."""
    return {
        key
        for key, runs in made.runs.items()
        for run in runs
        if made.weeks[run.job_name] == LAST and BAD_NODE in run.row["nodes"]
    }


def score(made: HalfYear) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Return counts by name of planted change, and sentences about reports of what was not planted."""
    found, counts, wrong = made.compare(), Counter[tuple[str, str]](), []
    by_series = {one.series: (one, row) for one, row in zip(found.findings, found.rows, strict=True)}
    affected = {key for one in PLANTED for key in one.cells}
    for one in PLANTED:
        for key in one.cells:
            finding, row = by_series[cells()[key]]
            counts[one.name, "cells"] += 1
            if finding.verdict != "slower":
                continue
            counts[one.name, "found"] += 1
            named = row["cause"] or "; ".join(finding.judgement.changes)
            counts[one.name, "cause"] += one.cause in named if one.cause else not row["cause"]
            jobs = [run.job_name for run in made.runs[key]]
            began = next(place for place, job in enumerate(jobs) if made.weeks[job] >= one.week)
            off = abs(jobs.index(finding.onset.job_name) - began) if finding.onset else -1
            counts[one.name, "exact"] += off == 0
            counts[one.name, "near"] += off <= 1
            counts[one.name, "runs off"] += off
    on_node = ran_on_bad_node(made)
    counts[NODE, "cells"] += 1
    counts[NODE, "found"] += any(cause.name == f"node {BAD_NODE}" for cause in found.causes)
    for key, series in cells().items():
        finding, row = by_series[series]
        if row["cause"] == f"node {BAD_NODE}":
            counts[NODE, "explains"] += 1
            if key not in on_node or (key in affected and finding.series_state.state == "confirmed"):
                wrong.append(f"{row['cell']}: cause {row['cause']}")
        elif row["cause"] and not any(
            one.cause and one.cause in row["cause"] and key in one.cells for one in PLANTED
        ):
            wrong.append(f"{row['cell']} {row['verdict']}: cause {row['cause']}")
        if finding.changed and key not in affected and not (key in on_node and finding.verdict == "slower"):
            wrong.append(
                f"{row['cell']}: {row['verdict']}, {row['series_state']}, {row['change_percent']:+.1f} %"
            )
        if finding.drift and key not in affected:
            wrong.append(f"{row['cell']}: drifts")
    return counts, wrong


def followed(seed: int, *, planted: bool) -> HalfYear:
    """Return a half year whose incidents were updated each week."""
    made = HalfYear(seed) if planted else HalfYear(seed, (), ())
    for week in range(WEEKS):
        made.run_week(week)
        made.update_incidents(made.compare(), week)
    return made


def score_incidents(made: HalfYear) -> tuple[dict[str, dict[str, int]], list[Incident]]:
    """Return what became of each planted change, and the confirmed incidents that are about none.

    `cells`: those of the change in its largest confirmed incident, of `of` cells. `incidents`: confirmed ones
    with a cell of it. `confirmed`: weeks from the change until that incident was.
    """
    confirmed = [one for one in made.incidents if one.id in made.confirmed and one.direction == "slower"]
    planted = [(one.name, one.week, {*one.cells}) for one in PLANTED] + [(NODE, LAST, ran_on_bad_node(made))]
    found, left = {}, list(confirmed)
    for name, week, keys in planted:
        series = {cells()[key] for key in keys}
        # Cells of other changes may have run on the bad node, too.
        among = left if name == NODE else confirmed
        about = [
            one
            for one in among
            if made.confirmed[one.id or 0] >= week and series & {cell.series for cell in one.cells}
        ]
        left = [one for one in left if one not in about]
        found[name] = {"of": len(series), "cells": 0, "incidents": len(about)}
        if about:
            largest = max(about, key=lambda one: len(series & {cell.series for cell in one.cells}))
            found[name] |= {
                "cells": len(series & {cell.series for cell in largest.cells}),
                "confirmed": made.confirmed[largest.id or 0] - week,
            }
    return found, left


def false_reports(seed: int) -> Counter[str]:
    """Return what is reported each Monday of a half year in which nothing changes."""
    made, counts, before = HalfYear(seed, (), ()), Counter[str](), set[Series]()
    for week in range(WEEKS):
        made.run_week(week)
        if week < FEWEST_RUNS:
            continue
        found = made.compare()
        slower = {one.series for one in found.findings if one.verdict == "slower"}
        counts["cell-weeks"] += len(found.findings)
        counts["newly confirmed slower"] += len(
            {
                one.series
                for one in found.findings
                if one.series in slower and one.series_state.state == "confirmed"
            }
            - before
        )
        counts["cell-weeks reported as slower"] += len(slower)
        counts["cell-weeks reported as faster"] += sum(one.verdict == "faster" for one in found.findings)
        counts["cell-weeks reported as drifting"] += sum(one.drift is not None for one in found.findings)
        counts["cell-weeks with a cause"] += len(
            frozenset[Series]().union(*(one.cells for one in found.causes))
        )
        before = slower
    return counts


def table(half_years: int, first_seed: int) -> Iterator[str]:
    """Yield the lines of a table of planted against reported changes."""
    counts, wrong = Counter[tuple[str, str]](), list[str]()
    for seed in range(first_seed, first_seed + half_years):
        found, others = score(half_year(seed, planted=True))
        counts += found
        wrong += [f"seed {seed}: {one}" for one in others]
    yield "| planted | found | cause right | date exact | within one run | runs off, mean |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(name for name, _ in counts):
        of = Counter({what: number for (of_name, what), number in counts.items() if of_name == name})
        seen = max(1, of["found"])
        parts = [f"{of['found']} of {of['cells']}"]
        if "explains" in of:
            parts += ["–", "–", "–", "–"]
        else:
            parts += [f"{100 * of[what] / seen:.0f} %" for what in ("cause", "exact", "near")]
            parts.append(f"{of['runs off'] / seen:.1f}")
        yield f"| {name} | {' | '.join(parts)} |"
    yield ""
    yield f"reported in {half_years} half years but not planted: {len(wrong)}"
    yield from wrong


def rates(half_years: int, first_seed: int) -> Iterator[str]:
    """Yield the rates of reports per cell and week in half years without changes."""
    counts = Counter[str]()
    for seed in range(half_years):
        counts.update(false_reports(1000 + first_seed + seed))
    weeks = counts.pop("cell-weeks", 0)
    yield f"\n{weeks} cell-weeks in {half_years} half years in which nothing changes:"
    for what, number in counts.items():
        yield f"{what}: {number} ({number / weeks:.5f} per cell-week)"


def incident_table(planted: int, unchanged: int, first_seed: int) -> Iterator[str]:
    """Yield the lines of a table of planted changes against confirmed incidents."""
    scores, wrong = defaultdict[str, list[dict[str, int]]](list), list[str]()
    for seed in range(first_seed, first_seed + planted):
        found, others = score_incidents(followed(seed, planted=True))
        for name, of_name in found.items():
            scores[name].append(of_name)
        wrong += [f"seed {seed}: {one.sentence}" for one in others]
    yield "\n| planted | confirmed | incidents | cells in the largest | weeks until confirmed |"
    yield "|---|---|---|---|---|"
    for name, some in scores.items():
        seen = [one for one in some if one["incidents"]]
        means = [
            f"{statistics.fmean(one[what] for one in seen):.1f}" if seen else "–"
            for what in ("incidents", "cells", "confirmed")
        ]
        means[1] += f" of {statistics.fmean(one['of'] for one in some):.0f}"
        yield f"| {name} | {len(seen)} of {len(some)} | {' | '.join(means)} |"
    yield f"\nconfirmed incidents in {planted} half years that are about nothing planted: {len(wrong)}"
    yield from wrong
    states = Counter[str]()
    for seed in range(unchanged):
        made = followed(1000 + first_seed + seed, planted=False)
        states.update(
            f"{one.direction}, {'confirmed' if one.id in made.confirmed else 'suspected only'}"
            for one in made.incidents
        )
    yield f"\nincidents in {unchanged} half years in which nothing changes: {dict(states) or 'none'}"


def main() -> int:
    """Print the table and the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--planted", type=int, default=20, help="half years with changes")
    parser.add_argument("--unchanged", type=int, default=10, help="half years without changes")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first half year")
    asked = parser.parse_args()
    lines = (
        table(asked.planted, asked.first_seed),
        rates(asked.unchanged, asked.first_seed),
        incident_table(asked.planted, asked.unchanged, asked.first_seed),
    )
    for line in chain(*lines):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
