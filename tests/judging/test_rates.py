"""How often the engine errs, by seeded simulation: the figures of `docs/judging.md`."""

import random
from pathlib import Path

import pytest

from steptime.judging.detection import BASELINE_RUNS, FRESH_RUNS, Baseline, Standing, judge
from steptime.judging.findings import Finding, among_all
from steptime.judging.series import JudgedRun, Series
from steptime.results.columns import of_series

pytestmark = pytest.mark.service

PAGE = Path(__file__).parents[2] / "docs" / "judging.md"
NOISE = 0.01
"""Standard deviation from run to run, relative to the step time."""
WEEKS, CELLS = 52, 54
SERIES = Series.of_row(
    {"cluster": "h100", "gpu_type": "h100", "workload": "llama3.1-25.04", "size": "8b", "proxy": False}
    | {"gpus": 8, "dtype": "bf16", "scaling": "weak", "mode": "performance"}
    | {**dict.fromkeys(of_series("spread"), 1), "data_parallel": 8}
)


def dice() -> random.Random:
    """The same noise for every figure."""
    return random.Random(12)  # noqa: S311 - step times, not secrets


def usual(noise: random.Random) -> Standing:
    """A series with a whole baseline."""
    runs = tuple(noise.gauss(1, NOISE) for _ in range(BASELINE_RUNS))
    return Standing("unchanged", baseline=Baseline(runs))


def a_week(before: Standing, noise: random.Random, level: float = 1.0) -> Standing:
    """One run, and the fresh ones that a suspicion asks for."""
    standing = judge(before, noise.gauss(level, NOISE))
    for _ in range(FRESH_RUNS if standing.state == "suspected" else 0):
        standing = judge(standing, noise.gauss(level, NOISE))
    return standing


def false_alarms(metrics: int) -> tuple[float, float]:
    """Of series that never change, per metric and year: slowdowns suspected, and slowdowns confirmed."""
    noise, suspected, confirmed = dice(), 0, 0
    for _ in range(metrics):
        standing = usual(noise)
        for _ in range(WEEKS):
            before, standing = standing, a_week(standing, noise)
            if standing.direction == "slower" and before.state != "confirmed":
                suspected += 1
                confirmed += standing.state == "confirmed"
    return suspected / metrics, confirmed / metrics


def power(slower: float, metrics: int = 4000) -> float:
    """How often a slowdown is confirmed within its first week, by the weekly run and two fresh ones."""
    noise = dice()
    stood = (a_week(usual(noise), noise, 1 + slower) for _ in range(metrics))
    return sum((one.state, one.direction) == ("confirmed", "slower") for one in stood) / metrics


def noisy_mondays(mondays: int) -> float:
    """How often a comparison of cells that never changed, with one run each, tells one as slower."""
    noise, told, run = dice(), 0, JudgedRun({}, 1.0, "")
    for _ in range(mondays):
        stood = (judge(usual(noise), noise.gauss(1, NOISE)) for _ in range(CELLS))
        found = among_all(Finding(SERIES, run, standing) for standing in stood)
        told += any(one.verdict == "slower" for one in found)
    return told / mondays


def seen_at_the_least(metrics: int) -> float:
    """How often one run that is slower by its cell's minimum detectable change is suspected."""
    noise, seen = dice(), 0
    for _ in range(metrics):
        standing = usual(noise)
        slower = 1 + standing.baseline.minimum_detectable_change
        seen += judge(standing, noise.gauss(slower, NOISE)).state == "suspected"
    return seen / metrics


def documented(*figures: str) -> bool:
    """Whether docs/judging.md has a row of its table that begins with these."""
    return f"| {' | '.join(figures)} |" in PAGE.read_text()


def test_false_alarms_are_rare_after_confirmation() -> None:
    suspected, confirmed = false_alarms(8000)

    assert confirmed < 0.02, "per metric and year"
    assert suspected > 10 * confirmed, "what confirmation is worth"
    assert documented("slowdowns suspected of a series that never changes, a year", f"{suspected:.2f}")
    assert documented("… of them confirmed by two fresh runs", f"{confirmed:.4f}")


def test_a_slowdown_of_5_percent_is_confirmed_in_its_first_week() -> None:
    found = {slower: power(slower) for slower in (0.02, 0.03, 0.04, 0.05)}

    assert found[0.05] > 0.95
    for slower, share in found.items():
        assert documented(f"a slowdown of {slower:.0%} confirmed within its first week", f"{share:.0%}")


def test_a_monday_without_a_slowdown_seldom_tells_one() -> None:
    share = noisy_mondays(400)

    assert share < 0.1
    assert documented(
        f"Mondays that report a slowdown among {CELLS} cells that never changed", f"{share:.1%}"
    )


def test_a_slowdown_of_the_least_size_is_seen_by_four_runs_of_five() -> None:
    assert seen_at_the_least(4000) == pytest.approx(0.8, abs=0.02)
