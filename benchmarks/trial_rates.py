"""How many runs trials need until they are decided, and how often anything that they state is wrong.

    python benchmarks/trial_rates.py [--trials 200] [--seed 1] [--only 2]

Trials are simulated, of up to 16 rounds with a least difference of 1.5 %. A run's time has normal noise, the
effect of its round (0.7 %), a drift of 0.1 % from run to run of the round, and in one of 20 runs a
disturbance of 2 to 8 %. The times are made up; all that decides is the product's. Prints the mean number of
runs, the share of trials that are decided (the others are open after the last round), and the share that
states anything wrong after any round. A second table has machines whose runs differ much, with nothing known
of their noise. Of trials of 8 and 16 variants, which take longer, a quarter and an eighth of the number is
simulated. Two hundred trials take some minutes in all.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from steptime.judging.trials import ROUNDS_MAX, Race, StopWhen, TrialState

LEAST_PERCENT = 1.5
ROUND_PERCENT = 0.7
DRIFT_PERCENT = 0.1
DISTURBED_SHARE = 0.05
DISTURBED_PERCENT = (2.0, 8.0)


@dataclass(frozen=True)
class Noise:
    """The noise of the runs in percent, and what is known of it before the trial."""

    percent: float
    known_percent: float | None

    def __str__(self) -> str:
        if self.known_percent is None:
            return f"{self.percent:g} %, unknown"
        return f"{self.percent:g} %" + (
            f", taken for {self.known_percent:g} %" * (self.known_percent != self.percent)
        )


@dataclass(frozen=True)
class Variants:
    """What is true of the variants of a trial, and when it stops."""

    name: str
    slower_percent: tuple[float, ...]
    """By how much each is slower than the first."""
    stop_when: StopWhen = "all within"
    times_noise: float = 1.0
    """How many times as large the noise of the last one is."""
    rounds_max: int = ROUNDS_MAX


@dataclass(frozen=True)
class Outcome:
    """How a simulated trial ended."""

    runs: int
    state: TrialState
    is_wrong: bool
    """Whether anything that was stated after any round is wrong."""


_SHARES = {8: 1 / 4, 16: 1 / 8}
NOISES = (Noise(0.5, 0.5), Noise(1, 1), Noise(2, 2), Noise(1, None), Noise(1, 0.5))
MUCH_NOISE = tuple(Noise(percent, None) for percent in (5, 10, 20, 30, 50))


def kinds() -> Iterator[tuple[Variants, Sequence[Noise]]]:
    """Yield the rows of the first table, with the noises that each is simulated for."""
    for percent in (0.0, 1.0, LEAST_PERCENT, 2.0, 3.0, 5.0):
        yield Variants(f"2 variants, {percent:g} % apart", (0, percent)), NOISES
    for count in (4, 8, 16):
        equal = (0.0,) * count
        yield Variants(f"{count} equal variants", equal), NOISES[:2]
        yield Variants(f"{count} equal variants, until the best is known", equal, "best known"), NOISES[:2]
        faster = (0.0, *[3.0] * (count - 1))
        yield Variants(f"{count} variants, one faster by 3 %", faster), NOISES[:2]
    yield Variants(f"4 variants, one faster by {LEAST_PERCENT} %", (0, *[LEAST_PERCENT] * 3)), NOISES[:2]
    slower = (0.0, 0.0, 0.0, LEAST_PERCENT)
    yield Variants(f"4 variants, one slower by {LEAST_PERCENT} %", slower), NOISES[:2]
    yield Variants("4 equal variants, one with twice the noise", (0.0,) * 4, times_noise=2), NOISES[:2]
    spread = tuple(5 * number / 7 for number in range(8))
    yield Variants("8 variants, spread over 5 %", spread), NOISES[:2]
    spread = tuple(3.0 * number for number in range(16))
    yield Variants("16 variants, spread over 45 %", spread), NOISES[:2]


def noisy_kinds() -> Iterator[tuple[Variants, Sequence[Noise]]]:
    """Yield the rows of the second table, likewise."""
    equal = "2 equal variants"
    yield Variants(f"{equal}, at most 6 rounds", (0, 0), rounds_max=6), MUCH_NOISE
    yield Variants(equal, (0, 0)), MUCH_NOISE
    yield Variants("2 variants, 50 % apart", (0, 50)), MUCH_NOISE
    yield Variants("4 equal variants", (0.0,) * 4), MUCH_NOISE
    yield Variants("4 equal variants, one with twice the noise", (0.0,) * 4, times_noise=2), MUCH_NOISE


def simulate(variants: Variants, noise: Noise, seed: str) -> Outcome:
    """Simulate a trial to its end."""
    rng = random.Random(seed)  # noqa: S311
    order_seed = rng.getrandbits(32)
    slower = {str(number): percent for number, percent in enumerate(variants.slower_percent)}
    names = list(slower)
    race = Race(
        names,
        least_difference_percent=LEAST_PERCENT,
        known_noise_percent=noise.known_percent,
        rounds_max=variants.rounds_max,
        stop_when=variants.stop_when,
    )
    runs, is_wrong, state = 0, False, race.state()
    while not state.ended:
        round_percent = rng.gauss(0, ROUND_PERCENT)
        times: dict[str, float | None] = {}
        order = list(race.still_in)
        random.Random(f"{order_seed}/{race.rounds + 1}").shuffle(order)  # noqa: S311
        for position, name in enumerate(order):
            deviation = noise.percent * (variants.times_noise if name == names[-1] else 1)
            percent = round_percent + position * DRIFT_PERCENT + rng.gauss(0, deviation)
            if rng.random() < DISTURBED_SHARE:
                percent += rng.uniform(*DISTURBED_PERCENT)
            times[name] = 10 * (1 + slower[name] / 100) * math.exp(percent / 100)
        race.add_round(times)
        runs += len(times)
        state = race.state()
        is_wrong = is_wrong or states_what_is_wrong(state, slower)
    return Outcome(runs, state, is_wrong)


def states_what_is_wrong(state: TrialState, slower_percent: Mapping[str, float]) -> bool:
    """Return whether any interval, order, `within` or known best is wrong, or the fastest was set aside."""

    def difference(name: str, other: str) -> float:
        return 100 * ((1 + slower_percent[name] / 100) / (1 + slower_percent[other] / 100) - 1)

    for variant in state.variants:
        if variant.compared_with is None:
            continue
        true = difference(variant.variant, variant.compared_with)
        if variant.status in ("slower", "set aside") and true <= 0:
            return True
        low, high = variant.low_percent, variant.high_percent
        if low is not None and high is not None and not low - 1e-9 <= true <= high + 1e-9:
            return True
    largest = max((difference(name, other) for name in state.still_in for other in state.still_in), default=0)
    if state.within_percent is not None and largest > state.within_percent + 1e-9:
        return True
    if state.reason == "best known" and state.best is not None:
        return any(difference(state.best, name) > LEAST_PERCENT + 1e-9 for name in state.still_in)
    return state.reason == "within" and largest >= LEAST_PERCENT - 1e-9


def cell(outcomes: Sequence[Outcome]) -> str:
    """Return the mean number of runs, the share of decided trials and the share of wrong ones."""
    runs = statistics.fmean(outcome.runs for outcome in outcomes)
    decided = statistics.fmean(outcome.state.reason != "rounds used up" for outcome in outcomes)
    wrong = statistics.fmean(outcome.is_wrong for outcome in outcomes)
    return f"{runs:.1f} / {decided:.0%} / {wrong:.1%}".replace("%", " %")


def tables(trials: int, seed: int, only: int | None) -> Iterator[str]:
    """Yield the lines of both tables, and how many of all trials of each state anything wrong."""
    for noises, rows in ((NOISES, kinds()), (MUCH_NOISE, noisy_kinds())):
        yield f"| trial | {' | '.join(map(str, noises))} |"
        yield "|---" * (len(noises) + 1) + "|"
        wrong, number = 0, 0
        for variants, of_row in rows:
            count = len(variants.slower_percent)
            if only not in (None, count):
                continue
            cells = ["–"] * len(noises)
            for index, noise in enumerate(of_row):
                outcomes = [
                    simulate(variants, noise, f"{seed}/{variants.name}/{noise}/{trial}")
                    for trial in range(math.ceil(trials * _SHARES.get(count, 1)))
                ]
                cells[index] = cell(outcomes)
                wrong += sum(outcome.is_wrong for outcome in outcomes)
                number += len(outcomes)
            yield f"| {variants.name} | {' | '.join(cells)} |"
        yield f"\nwrong: {wrong} of {number} trials\n"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="simulated trials of each kind and noise")
    parser.add_argument("--seed", type=int, default=1, help="other seeds make other trials")
    parser.add_argument("--only", type=int, help="trials of so many variants")
    options = parser.parse_args()
    for line in tables(options.trials, options.seed, options.only):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
