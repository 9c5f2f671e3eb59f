"""What people are told on each Monday of half years with changes of many kinds, and which of it is false.

    python benchmarks/planted_mondays.py [--half-years 6] [--unchanged 2] [--first-seed 0]

The cells are those of `planted_changes.py`: a driver, three nodes, an image that is faster, a lucky week, two
drifts, a save, a slowdown from a scale on, opposite changes, one that is fixed, a second one on top of
another, a noisy cell, and three that fail; then those of half years in which nothing changes. Prints what
became of each change, and every sentence that was not true, once.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from planted_changes import (
    IMAGE,
    NOISY,
    SAVE,
    STARTED_AT,
    WEEKS,
    HalfYear,
    Key,
    Planted,
    PlantedFailure,
    PlantedNode,
    cells,
    performance,
)
from steptime.durations import WEEK_S
from steptime.judging.findings import Comparison, Finding
from steptime.judging.incidents import ACTIVE, Incident

BLACKWELL = tuple(key for key, series in cells().items() if series["cluster"] == "blackwell")
HOPPER = tuple(key for key, series in cells().items() if series["cluster"] == "hopper")
OF_8B = tuple(key for key in HOPPER if key[0] == "8b")
BOTH = ("bf16", "fp8")
PLANTS = (
    Planted("driver, all 14 cells of a cluster +4 %", BLACKWELL, 16, 0.04, ("driver", "590"), "driver"),
    Planted("image, 12 cells of one size 6 % faster", OF_8B, 14, -0.06, ("image", IMAGE), "image"),
    Planted(
        "lucky week, 4 cells -4 %",
        tuple(performance("56b", gpus, "bf16") for gpus in (32, 64, 128, 256)),
        *(18, -0.04),
        until=19,
    ),
    Planted(
        "drift of 1 % a week for 8 weeks, a harmless variable in its second",
        (performance("15b", 32, "bf16"),),
        *(14, 0.08),
        drifts=8,
    ),
    Planted("harmless variable", (), 15, 0.0, ("NCCL_ALGO", "Ring"), set_in=HOPPER),
    Planted("drift of 0.5 % a week for 12 weeks", (performance("15b", 64, "bf16"),), 12, 0.06, drifts=12),
    Planted("checkpoint save +25 %, nothing recorded", (SAVE,), 17, 0.25),
    Planted(
        "+6 % from 512 GPUs on, nothing recorded",
        tuple(performance("70b", gpus, dtype) for gpus in (512, 768) for dtype in BOTH),
        *(19, 0.06),
    ),
    Planted(
        "a variable, 3 cells +5 %",
        tuple(performance("15b", gpus, "fp8") for gpus in (16, 32, 64)),
        *(21, 0.05, ("NVTE_FP8_DPA_BWD", "0"), "NVTE_FP8_DPA_BWD"),
    ),
    Planted(
        "at the same time another, 3 cells 5 % faster",
        tuple(performance("70b", gpus, "fp8") for gpus in (64, 128, 256)),
        *(21, -0.05, ("NVTE_FLASH_ATTN", "0"), "NVTE_FLASH_ATTN"),
    ),
    Planted(
        "a variable, 3 cells +5 % for 4 weeks",
        tuple(performance("70b", gpus, "bf16") for gpus in (64, 128, 256)),
        *(11, 0.05, ("NCCL_IB_QPS", "4"), "NCCL_IB_QPS"),
        until=15,
    ),
    Planted(
        "+5 % by a variable …", (performance("56b", 128, "fp8"),), 10, 0.05, ("NCCL_P2P", "1"), "NCCL_P2P"
    ),
    Planted(
        "… and +4 % on top by another",
        (performance("56b", 128, "fp8"),),
        *(20, 0.04, ("NCCL_NVLS", "0"), "NCCL_NVLS"),
    ),
    Planted("+5 % in a cell with 8 % noise", (NOISY[0],), 12, 0.05),
)
NODES = (
    PlantedNode("hopper021", range(20, 22), 0.05),
    PlantedNode("hopper055", range(24, 26), 0.07),
    PlantedNode("blackwell033", range(22, 26), 0.03),
)
FAILURES = (
    PlantedFailure(performance("56b", 256, "fp8"), range(13, 16), "CUDA out of memory"),
    PlantedFailure(performance("15b", 256, "bf16"), range(16, 19), "NCCL timed out"),
    PlantedFailure(performance("15b", 512, "bf16"), range(23, 26), "CUDA out of memory"),
)
ORDINALS = ("", "; it fails for the second week", "; it fails for the third week")
DAY_S = 86_400
"""The runs of a week are within a day."""
LAG = 2
"""Weeks for which people are still told of what is over."""


@dataclass
class Told:
    """What became of one planted change: the first true sentence of each kind, by week."""

    named: int | None = None
    dated: bool = False
    """Whether the likeliest beginning was within a week when it was first named."""
    caused: bool = False
    sizes: list[float] = field(default_factory=list)
    closed: int | None = None
    cells: set[Key] = field(default_factory=set)


class Diary:
    """A half year with what was told on each Monday."""

    def __init__(self, seed: int, *, planted: bool = True) -> None:
        self.made = HalfYear(seed, PLANTS, NODES, FAILURES) if planted else HalfYear(seed, (), ())
        self.keys = {series: key for key, series in cells().items()}
        self.false: dict[tuple[str, object], str] = {}
        self.told: dict[str, Told] = defaultdict(Told)
        self.unclear: set[tuple[Key, bool, bool]] = set()
        """Cells told as `a step or a drift`, whether they drift, and whether they became slower."""
        self.closed: set[int] = set()

    def write(self) -> None:
        """Run all weeks, and check what is told on each Monday."""
        for week in range(WEEKS):
            self.made.run_week(week)
            found = self.made.compare()
            self.made.update_incidents(found, week)
            if week < 7:
                continue
            self._check_rows(found, week)
            self._check_failures(found, week)
            for incident in self.made.incidents:
                if incident.state in ACTIVE or incident.id not in self.closed:
                    self._check_incident(incident, week)
                if incident.state not in ACTIVE:
                    self.closed.add(incident.id or 0)

    def _plants(self, key: Key, week: int) -> list[Planted]:
        """Return what slows or speeds a cell in a week, or did so until shortly before."""
        return [one for one in self.made.plants if key in one.cells and one.week <= week < one.until + LAG]

    def _nodes(self, key: Key, week: int, *, lag: int = WEEKS) -> list[PlantedNode]:
        """Return the bad nodes that a run of the cell used when they were bad, up to this week.

        `lag` is for how many weeks after it was repaired a node counts.
        """
        return [
            bad
            for bad in self.made.nodes
            if any(
                bad.node in run.row["nodes"].split(", ")
                and self.made.weeks[run.job_name] in bad.weeks
                and self.made.weeks[run.job_name] <= week
                for run in self.made.runs[key]
            )
            and week < bad.weeks.stop + lag
        ]

    def _say(self, kind: str, whom: object, week: int, sentence: str) -> None:
        self.false.setdefault((kind, whom), f"week {week}, {kind}: {sentence}")

    def _check_rows(self, found: Comparison, week: int) -> None:
        for finding, row in zip(found.findings, found.rows, strict=True):
            key = self.keys[finding.series]
            if not (finding.changed or finding.drift or row["cause"]):
                continue
            plants, nodes = self._plants(key, week), self._nodes(key, week, lag=LAG)
            sign = -1 if finding.verdict == "faster" else 1
            same = [one for one in plants if one.step * sign > 0]
            sentence = f"{row['cell']} {row['verdict']}, {row['series_state']}, {finding.evidence}"
            if (finding.changed or finding.drift) and not same and not (nodes and sign > 0):
                # Back at its level after a planted speed-up or slowdown is a change, too.
                if not any(one.until <= week for one in self.made.plants if key in one.cells):
                    self._say("nothing changed", key, week, sentence)
                continue
            if row["cause"]:
                true = [one.cause for one in plants if one.cause] + [f"node {bad.node}" for bad in nodes]
                if not any(cause in row["cause"] for cause in true):
                    self._say("wrong cause", (key, row["cause"]), week, f"{row['cell']}: {row['cause']}")
            if finding.onset and same and not nodes and finding.series_state.state == "confirmed":
                self._check_onset(finding, same, week, sentence)

    def _check_failures(self, found: Comparison, week: int) -> None:
        said = {self.keys[cell.series]: cell.sentence for cell in self.made.missing(found, week)}
        wanted = {
            one.cell: f"failed: {one.reason}{ORDINALS[week - one.weeks.start]}"
            for one in self.made.failures
            if week in one.weeks
        }
        for key in {**said, **wanted}:
            if said.get(key) != wanted.get(key):
                self._say("a failure", key, week, f"{cells()[key].label} {said.get(key)}")
        for one in self.made.failures:
            if week == one.weeks[-1] and said.get(one.cell) == wanted[one.cell]:
                self.told[_failure_name(one)].named = 0

    def _check_onset(self, finding: Finding, plants: list[Planted], week: int, sentence: str) -> None:
        key, onset = self.keys[finding.series], finding.onset
        assert onset
        drifts = any(one.drifts for one in plants)
        if onset.perhaps_weekly is not None:
            self.unclear.add((key, drifts, onset.perhaps_weekly > 0))
        if onset.weekly is not None and not drifts:
            self._say("a step called a drift", (key, onset.weekly > 0), week, sentence)
        elif (
            not (onset.weekly or onset.perhaps_weekly)
            and drifts
            and week >= 3 + min(one.week for one in plants)
        ):
            self._say("a drift called a step", key, week, sentence)
        elif onset.weekly is None and not any(
            self._began(one, onset.earliest, onset.latest) for one in plants
        ):
            self._say("wrong date", key, week, sentence + f" {onset.words}")

    def _began(self, plant: Planted | PlantedNode, earliest: float, latest: float) -> bool:
        """Return whether a change began in this range, give or take a week."""
        first = plant.week if isinstance(plant, Planted) else plant.weeks.start
        began = STARTED_AT + first * WEEK_S
        # A drift goes on, and a cell may run on a bad node later than others.
        lasted = max(1, plant.drifts) if isinstance(plant, Planted) else len(plant.weeks)
        last = began + (lasted - 1) * WEEK_S
        return earliest - WEEK_S - DAY_S <= last and began <= latest + WEEK_S + DAY_S

    def _check_incident(self, incident: Incident, week: int) -> None:
        sign = -1 if incident.direction == "faster" else 1
        keys = [self.keys[cell.series] for cell in incident.cells]
        about: list[Planted | PlantedNode] = [
            one
            for one in self.made.plants
            if one.step * sign > 0 and one.week <= week and set(keys) & set(one.cells)
        ]
        if sign > 0:
            about += [bad for key in keys for bad in self._nodes(key, week)]
        sentence = f"{incident.state}: {incident.title} ({len(incident.cells)} cells)"
        if not about:
            if self.made.confirmed.get(incident.id or 0) is not None:
                self._say("incident about nothing", incident.id, week, sentence)
            return
        if self.made.confirmed.get(incident.id or 0) is None:
            return
        right = [one for one in about if self._began(one, incident.earliest, incident.latest)]
        if not right:
            self._say("wrong date of an incident", incident.id, week, sentence)
        named = [
            one
            for one in right
            if (
                one.node in incident.subject
                if isinstance(one, PlantedNode)
                else one.cause and one.cause in incident.subject
            )
        ]
        drifting = any(isinstance(one, Planted) and one.drifts for one in right)
        if incident.subject and not named and right:
            is_title = " cells of " in incident.subject or incident.subject.startswith("a step or ")
            is_drift = incident.subject.startswith("drifts")
            may_drift = drifting and " or a drift of " in incident.subject
            names_none = incident.subject == "no change of its own"
            if is_drift and not drifting:
                self._say("incident: a step called a drift", incident.id, week, sentence)
            elif not (is_title or is_drift or may_drift or names_none):
                self._say("wrong cause of an incident", incident.id, week, sentence)
        if incident.state in ("fixed", "ended", "new level", "dismissed"):
            still = [
                key
                for key in keys
                if any(isinstance(one, Planted) and key in one.cells and one.level(week) for one in right)
                or any(isinstance(one, PlantedNode) and week in one.weeks for one in right)
            ]
            if right and 2 * len(still) > len(keys) and incident.state != "new level":
                self._say("closed, but it is still there", incident.id, week, sentence)
            if right and not still and incident.state == "new level":
                self._say("new level, but it is over", incident.id, week, sentence)
        for one in right:
            self._note(one, incident, named, week)

    def _note(
        self, plant: Planted | PlantedNode, incident: Incident, named: Collection[object], week: int
    ) -> None:
        name = plant.name if isinstance(plant, Planted) else _node_name(plant)
        if isinstance(plant, PlantedNode) and plant not in named:
            return
        told = self.told[name]
        first = plant.week if isinstance(plant, Planted) else plant.weeks.start
        if told.named is None:
            told.named = week - first
            told.dated = self._began(plant, incident.since, incident.since)
        told.caused |= plant in named
        told.cells |= {self.keys[cell.series] for cell in incident.cells}
        told.sizes.append(incident.change)
        over = plant.until if isinstance(plant, Planted) else plant.weeks.stop
        if incident.state not in ACTIVE and week >= over:
            told.closed = week - over


def _failure_name(one: PlantedFailure) -> str:
    size, gpus, dtype, _ = one.cell
    return f"{size} {dtype} {gpus} fails for {len(one.weeks)} weeks"


def _node_name(bad: PlantedNode) -> str:
    return f"node {bad.node}, +{100 * bad.step:.0f} %, {len(bad.weeks)} weeks"


def main() -> int:
    """Print the table and the false sentences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--half-years", type=int, default=6)
    parser.add_argument("--unchanged", type=int, default=2, help="half years without changes")
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    every: dict[bool, list[Diary]] = {True: [], False: []}
    for planted, number in ((True, asked.half_years), (False, asked.unchanged)):
        for seed in range(asked.first_seed, asked.first_seed + number):
            diary = Diary(seed, planted=planted)
            diary.write()
            every[planted].append(diary)
            for sentence in diary.false.values():
                print(f"seed {seed}, {sentence}", flush=True)
    for line in table(every[True]):
        print(line)
    if every[False]:
        print(f"in {asked.unchanged} half years in which nothing changes: {_false(every[False])}")
    return 0


def table(diaries: list[Diary]) -> Iterator[str]:
    """Yield the lines of a table of planted against told changes."""
    yield "\n| planted | named | weeks until then | dated | cause | cells | size | closed |"
    yield "|---|---|---|---|---|---|---|---|"
    names = [one.name for one in PLANTS if one.cells] + [*map(_node_name, NODES)]
    names += map(_failure_name, FAILURES)
    for name in names:
        told = [diary.told[name] for diary in diaries]
        seen = [one for one in told if one.named is not None]
        planted = {key for plant in PLANTS if plant.name == name for key in plant.cells}
        cells_told = [len(one.cells & planted if planted else one.cells) for one in seen]
        parts = [
            f"{len(seen)} of {len(told)}",
            ", ".join(str(one.named) for one in seen),
            str(sum(one.dated for one in seen)),
            str(sum(one.caused for one in seen)),
            ", ".join(map(str, cells_told)),
            ", ".join(f"{100 * max(one.sizes, key=abs):.1f}" for one in seen if one.sizes),
            ", ".join(str(one.closed) for one in seen if one.closed is not None),
        ]
        yield f"| {name} | {' | '.join(parts)} |"
    seen_of = [sum(diary.told[name].named is not None for diary in diaries) for name in names]
    yield f"\nnamed: {_of(sum(seen_of), len(names) * len(diaries))}"
    caused = [(diary.told[one.name].caused, one) for diary in diaries for one in PLANTS if one.cause]
    yield f"with their cause: {_of(sum(right for right, _ in caused), len(caused))}"
    drifts = [drifts for diary in diaries for _, drifts, _ in diary.unclear]
    yield f"told as a step or a drift: {drifts.count(False)} steps, {drifts.count(True)} drifts"
    yield f"in {len(diaries)} half years: {_false(diaries)}"


def _false(diaries: list[Diary]) -> str:
    """Return the number of false sentences by kind, and that of a half year, as text."""
    kinds = Counter(kind for diary in diaries for kind, _ in diary.false)
    low, high = (bound / len(diaries) for bound in _poisson_interval(kinds.total()))
    each = f"{kinds.total() / len(diaries):.1f} each ({low:.1f} to {high:.1f})"
    return f"{kinds.total()} false sentences, {each}: {dict(kinds)}"


def _of(number: int, every: int) -> str:
    """Return a share with its 95 % interval (Clopper and Pearson), as text."""
    from scipy import stats

    low, high = stats.binomtest(number, every).proportion_ci()
    return f"{number} of {every} ({100 * low:.0f} to {100 * high:.0f} %)"


def _poisson_interval(number: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the mean of a Poisson variable that had this value."""
    from scipy import stats

    low = stats.chi2.ppf(0.025, 2 * number) / 2 if number else 0.0
    return float(low), float(stats.chi2.ppf(0.975, 2 * number + 2) / 2)


if __name__ == "__main__":
    sys.exit(main())
