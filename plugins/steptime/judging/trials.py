"""Decide a trial: which variants are slower than the best one, and when is that known.

In a round each variant that is still in runs once, in random order; variants leave as in a race (Maron and
Moore, 1994). Whether two of them differ is read from the differences within rounds (`paired_runs`) after each
round, at levels that allow for that (`group_sequential`). Anything that a trial states is wrong with a
probability of at most `SLOWER_ALPHA + WITHIN_ALPHA`, over all rounds and variants:

- the intervals of differences, and with them that a variant is slower: each pair has an equal share of
  `SLOWER_ALPHA`;
- that all that are left are within the least difference: each pair is tested at `WITHIN_ALPHA`. The statement
  is wrong only if the test of the pair that is farthest apart errs, whichever other pairs there are (the
  intersection-union test; Berger, 1982). That pair depends on those that have left: each of them reduces the
  share of a test. If a trial stops when the best is known, all variants share `WITHIN_ALPHA`.

In a trial of many variants, those that are far off in the first round are set aside (successive halving;
Jamieson and Talwalkar, 2016). Nothing is stated about them. `docs/reference/trials.md` has the error rates.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Literal, NamedTuple

SLOWER_ALPHA = 0.03
"""Probability that the interval of any pair of variants misses its difference after any round."""
WITHIN_ALPHA = 0.02
"""Probability that variants are said to be within a difference, after any round, that they exceed."""
_WITHIN_SHAPE = 0.35
"""How the error of statements about all that are left is spread over rounds: later ones have more."""
ROUNDS_MAX = 16
INVALID_ROUNDS = 3
"""A variant that has no valid run in this many rounds in a row is taken out."""
SCREENED_VARIANTS = 12
"""Variants are set aside after the first round if there are more than this, and the noise is known."""
SET_ASIDE_PERCENT = 10.0
"""Least distance from the fastest of variants that are set aside."""
_SET_ASIDE_NOISE = 6.0
"""The least distance in known deviations of a run."""
_NEVER_SET_ASIDE = 4
"""Number of fastest variants that are not set aside, however far off."""
_FARTHEST_ROUNDS = 1000
"""No more further rounds than this are estimated."""
_ROUND_COST = 1.3
"""Rounds that are needed, relative to those without any disturbed run."""
_DECIDED = 0.8
"""Probability with which the estimated further rounds decide."""
_NORMAL = statistics.NormalDist()

VariantStatus = Literal["racing", "slower", "set aside", "cannot run", "within", "best"]
TrialEnd = Literal["one left", "within", "best known", "none can run", "rounds used up", "budget used up"]
StopWhen = Literal["all within", "best known"]


@dataclass(frozen=True)
class Observation:
    """What a run of a variant in a round showed."""

    variant: str
    round: int
    """From 1."""
    step_time_s: float | None
    """Seconds for a step; None if the run ended without a valid result."""
    cannot_run_cause: str | None = None
    """Why the variant can never run (out of memory, a refused option); None if it ran or may run."""


@dataclass(frozen=True)
class VariantState:
    """Where a variant of a trial stands."""

    variant: str
    status: VariantStatus
    """`best` leads, whether or not the others are shown to be slower; `within` is in at the end and shown to
    be within the least difference of all others that are in; `racing` is in and open, which it may stay;
    `set aside` was far off in the first round of a trial of many variants."""
    runs: int
    """Number of valid runs that count."""
    step_time_s: float | None
    """Median of these runs in seconds; None without any."""
    left_round: int | None = None
    """The round after which it was shown to be slower or set aside, or in which it could not run."""
    cause: str | None = None
    """Why it cannot run."""
    compared_with: str | None = None
    """The variant that the difference refers to: of a slower one, the best of those that it was shown to be
    slower than when it left; of one set aside, the fastest of the round; else the best one. None for the best
    one, and without a common round."""
    difference_percent: float | None = None
    """By how much it is slower; negative if it is faster."""
    low_percent: float | None = None
    """Bounds of the difference; None if it was set aside, as nothing is stated about it."""
    high_percent: float | None = None


class RoundDifference(NamedTuple):
    """By how much a variant that was in is slower than another one, as shown after a round."""

    round: int
    variant: str
    difference_percent: float
    low_percent: float
    high_percent: float


@dataclass(frozen=True)
class TrialState:
    """Where a trial stands after its complete rounds."""

    round: int
    """Number of complete rounds."""
    variants: tuple[VariantState, ...]
    still_in: tuple[str, ...]
    """The variants that the next round runs; if the trial has ended, those that are left."""
    ended: bool
    reason: TrialEnd | None
    """Why it has ended; None before."""
    best: str | None
    """The fastest of those that are in; None before the first complete round, and if none can run."""
    within_percent: float | None
    """All that are in are shown to differ by at most this; None with fewer than two, or without a bound."""
    open_pairs: tuple[tuple[str, str], ...]
    """Pairs of those that are in that are neither shown to differ nor to be within the least difference."""
    further_rounds: int | None
    """Estimate of how many more rounds decide the open pairs if their differences are as they seem now; 0 if
    none is open, None if there is no estimate or it exceeds 1000."""
    further_runs: int | None
    """The same in runs, if none of the variants leaves before."""
    by_round: tuple[RoundDifference, ...]
    """The differences of the others to the best one after each round, as long as they were in."""


def decide(
    variants: Sequence[str],
    observations: Iterable[Observation],
    *,
    least_difference_percent: float,
    known_noise_percent: float | None = None,
    rounds_max: int = ROUNDS_MAX,
    budget_used_up: bool = False,
    stop_when: StopWhen = "all within",
) -> TrialState:
    """Return where a trial stands after all of its observations so far, in any order.

    A round is complete when each variant that is still in has an observation in it. Times of an incomplete
    round do not count, but a variant that cannot run leaves at once. Observations after the end, and of
    variants that have left, are ignored. The result depends on nothing but the arguments. A variant without a
    valid run in `INVALID_ROUNDS` rounds in a row leaves.

    With more than `SCREENED_VARIANTS` and known noise, variants that are slower than the fastest in the first
    round by more than `SET_ASIDE_PERCENT`, and by more than noise explains, leave without a statement.

    Args:
        variants: the names of the variants.
        observations: at most one for each variant and round.
        least_difference_percent: smaller differences of step times do not matter.
        known_noise_percent: the standard deviation of a single run from run to run, in percent of the step
            time, as far as it is known before the trial. Its runs can overrule that. None if unknown.
        rounds_max: the trial ends after this many complete rounds.
        budget_used_up: whether no further round may start.
        stop_when: `all within` ends a trial when all that are left are shown to be within the least
            difference of one another; `best known` already when the best one is shown to be slower than none
            of the others by more than that.

    Raises:
        ValueError: a variant is unknown or occurs twice, a round or a step time is not positive and finite, a
            variant has two observations in a round, a run with a step time has a cause, or a limit is not
            positive.
    """
    race = Race(
        variants,
        least_difference_percent=least_difference_percent,
        known_noise_percent=known_noise_percent,
        rounds_max=rounds_max,
        stop_when=stop_when,
    )
    rounds: defaultdict[int, dict[str, Observation]] = defaultdict(dict)
    for observation in observations:
        _check(observation, variants)
        if observation.variant in rounds[observation.round]:
            raise ValueError(f"{observation.variant!r} has two observations in round {observation.round}")
        rounds[observation.round][observation.variant] = observation
    while not race.ended:
        number = race.rounds + 1
        for observation in rounds[number].values():
            if observation.cannot_run_cause is not None:
                race.cannot_run(observation.variant, observation.cannot_run_cause)
        if race.ended or not all(variant in rounds[number] for variant in race.still_in):
            break
        race.add_round({name: rounds[number][name].step_time_s for name in race.still_in})
    return race.state(budget_used_up=budget_used_up)


def _check(observation: Observation, variants: Sequence[str]) -> None:
    """Raise ValueError if an observation cannot be one of these variants in a trial."""
    if observation.variant not in variants:
        raise ValueError(f"the trial has no variant {observation.variant!r}")
    if observation.round < 1:
        raise ValueError(f"{observation.variant!r} has round {observation.round}; rounds count from 1")
    time = observation.step_time_s
    if time is not None and not (math.isfinite(time) and time > 0):
        raise ValueError(f"{observation.variant!r} has a step time of {time} s in round {observation.round}")
    if time is not None and observation.cannot_run_cause is not None:
        raise ValueError(
            f"{observation.variant!r} has a step time and cannot run in round {observation.round}"
        )


@dataclass(frozen=True)
class _Left:
    """How a variant left."""

    status: Literal["slower", "set aside", "cannot run"]
    round: int
    cause: str | None = None
    compared_with: str | None = None
    difference: tuple[float, ...] = ()
    """Estimate and bounds, if any, when it left: 100 × log ratios."""


@dataclass
class _Runs:
    """The runs of a variant that count."""

    step_times_s: list[float] = field(default_factory=list)
    invalid_rounds: int = 0
    """Rounds without a valid run since the last valid one."""


class Race:
    """A trial that is decided round by round; `decide` replays one. Step times are not checked here."""

    def __init__(
        self,
        variants: Sequence[str],
        *,
        least_difference_percent: float,
        known_noise_percent: float | None,
        rounds_max: int = ROUNDS_MAX,
        stop_when: StopWhen,
    ) -> None:
        """Begin before the first round; the arguments and the ValueError are those of `decide`."""
        from steptime.judging.group_sequential import levels
        from steptime.judging.paired_runs import PairedRuns

        if not variants or len(set(variants)) < len(variants):
            raise ValueError(
                f"a trial has one variant or more, each with a name of its own: {list(variants)}"
            )
        noise = 1.0 if known_noise_percent is None else known_noise_percent
        for limit in (least_difference_percent, rounds_max, noise):
            if not (math.isfinite(limit) and limit > 0):
                raise ValueError(f"differences, noise and rounds of a trial are positive: {limit}")
        self.variants = tuple(variants)
        self.still_in = self.variants
        self.rounds = 0
        self.reason: TrialEnd | None = None
        self._rounds_max = rounds_max
        self._stop_when = stop_when
        self._least = 100 * math.log1p(least_difference_percent / 100)
        self._numbers = {name: number for number, name in enumerate(variants)}
        self._paired = PairedRuns(len(variants), known_noise=known_noise_percent)
        self._known_noise = known_noise_percent
        self._evidence = self._paired.evidence(())
        self._levels = levels
        self._runs = {name: _Runs() for name in variants}
        self._left: dict[str, _Left] = {}
        self._by_round: list[dict[tuple[str, str], tuple[float, ...]]] = []
        self.best: str | None = None
        self._spread: float | None = None
        self._end()

    @property
    def ended(self) -> bool:
        """Whether no further round is needed, or allowed by the most rounds."""
        return self.reason is not None

    def cannot_run(self, variant: str, cause: str) -> None:
        """Take out a variant that is still in, because it can never run; others are ignored."""
        if variant in self.still_in:
            self._leave(variant, _Left("cannot run", self.rounds + 1, cause))
            self._end()

    def add_round(self, step_times_s: Mapping[str, float | None]) -> None:
        """Add a complete round: seconds for each variant that is still in, None for an invalid run."""
        valid = {name: time for name, time in step_times_s.items() if time is not None}
        self._paired.add_round({self._numbers[name]: 100 * math.log(time) for name, time in valid.items()})
        self.rounds += 1
        for name in self.still_in:
            runs = self._runs[name]
            runs.invalid_rounds = 0 if name in valid else runs.invalid_rounds + 1
            if name in valid:
                runs.step_times_s.append(valid[name])
            elif runs.invalid_rounds == INVALID_ROUNDS:
                cause = f"no valid run in {INVALID_ROUNDS} rounds in a row"
                self._leave(name, _Left("cannot run", self.rounds, cause))
        if self.rounds == 1:
            self._set_aside(valid)
        self._evidence = self._paired.evidence(map(self._numbers.__getitem__, self._compared()))
        differences = self._differences()
        self._take_out_slower(differences)
        self._end()
        self._by_round.append({pair: self._narrowed(pair, *found) for pair, found in differences.items()})

    def _leave(self, variant: str, left: _Left) -> None:
        self._left[variant] = left
        self.still_in = tuple(name for name in self.still_in if name != variant)

    def _set_aside(self, step_times_s: Mapping[str, float]) -> None:
        """Set aside what is far off in the first round of a trial of many variants."""
        if len(step_times_s) <= SCREENED_VARIANTS or self._known_noise is None:
            return
        fastest, *others = sorted(step_times_s, key=step_times_s.__getitem__)
        farthest = max(SET_ASIDE_PERCENT, _SET_ASIDE_NOISE * self._known_noise)
        for name in others[_NEVER_SET_ASIDE - 1 :]:
            difference = 100 * math.log(step_times_s[name] / step_times_s[fastest])
            if _percent(difference) > farthest:
                self._leave(name, _Left("set aside", self.rounds, None, fastest, (difference,)))

    def _compared(self) -> list[str]:
        """Return the variants that have a valid run and were not set aside."""
        aside = {name for name, left in self._left.items() if left.status == "set aside"}
        return [name for name, runs in self._runs.items() if runs.step_times_s and name not in aside]

    def _differences(self) -> dict[tuple[str, str], tuple[float, float, float]]:
        """Return by how much each that is in is slower than each other one, with bounds."""
        return {
            pair: self._difference(pair)
            for pair in permutations(self.still_in, 2)
            if self._ran_together(pair)
        }

    def _take_out_slower(self, differences: Mapping[tuple[str, str], tuple[float, float, float]]) -> None:
        """Take out the variants that are shown to be slower than another, but never all."""
        slower_than = {
            name: [
                other
                for other in self.still_in
                if (name, other) in differences and differences[name, other][1] > 0
            ]
            for name in self.still_in
        }
        kept = [name for name in self.still_in if not slower_than[name]]
        if self.still_in and not kept:
            kept = [self._leader(self.still_in)]
        for name in self.still_in:
            if name not in kept:
                against = self._leader(slower_than[name])
                self._leave(name, _Left("slower", self.rounds, None, against, differences[name, against]))

    def _end(self) -> None:
        """Find the best of those that are in, and why the trial ends now, if it does."""
        has_runs = self.rounds > 0 or len(self.still_in) == 1
        self.best = self._leader(self.still_in) if self.still_in and has_runs else None
        self._spread = spread = self._find_spread()
        if not self.still_in:
            self.reason = "none can run"
        elif len(self.still_in) == 1:
            self.reason = "one left"
        elif spread is not None and spread <= self._least:
            self.reason = "within"
        elif self._stop_when == "best known" and self._is_best_known():
            self.reason = "best known"
        elif self.rounds >= self._rounds_max:
            self.reason = "rounds used up"

    def _is_best_known(self) -> bool:
        """Return whether the best is shown to be slower than no other by more than the least difference."""
        best = self.best
        return best is not None and all(
            self._ran_together((best, name))
            and self._quantile((best, name), 1 - self._within_level()) <= self._least
            for name in self.still_in
            if name != best
        )

    def _ran_together(self, pair: tuple[str, str]) -> bool:
        return self._numbered(pair) in self._evidence

    def _numbered(self, pair: tuple[str, str]) -> tuple[int, int]:
        return self._numbers[pair[0]], self._numbers[pair[1]]

    def _slower_level(self) -> float:
        """Return the level, in each direction and round, of the share of `SLOWER_ALPHA` of each pair."""
        pairs = max(1, math.comb(len(self._compared()), 2))
        return self._levels(SLOWER_ALPHA / pairs, self._rounds_max)[0]

    def _within_level(self) -> float:
        """Return the level of this round's tests of whether pairs are within a difference.

        If n have left as slower, and m that are left are too far apart, m of the m + n tests of these have to
        err: at a share of 1 / (n + 1) that is rarer than one error at the whole level (Markov's inequality).
        """
        slower = sum(left.status == "slower" for left in self._left.values())
        shares = 1 + slower if self._stop_when == "all within" else len(self.variants)
        levels = self._levels(WITHIN_ALPHA / shares, self._rounds_max, shape=_WITHIN_SHAPE, sides=1)
        return levels[self.rounds - 1]

    def _difference(self, pair: tuple[str, str]) -> tuple[float, float, float]:
        """Return by how much the first of two that ran together is slower, with bounds: 100 × log ratios."""
        level = self._slower_level()
        return self._quantile(pair, 0.5), self._quantile(pair, level), self._quantile(pair, 1 - level)

    def _bound(self, pair: tuple[str, str]) -> float:
        """Return what a pair that ran together is shown to differ by at most: 100 × log ratio."""
        level = self._within_level()
        return max(-self._quantile(pair, level), self._quantile(pair, 1 - level))

    def _quantile(self, pair: tuple[str, str], probability: float) -> float:
        return self._evidence.quantile(self._numbered(pair), probability)

    def _narrowed(self, pair: tuple[str, str], estimate: float, low: float, high: float) -> tuple[float, ...]:
        """Return a difference with the bounds that all that are in have, too: both hold at once."""
        if self._spread is None or not set(pair) <= set(self.still_in):
            return estimate, low, high
        return estimate, max(low, -self._spread), min(high, self._spread)

    def _find_spread(self) -> float | None:
        """Return what those that are in are shown to differ by at most: 100 × log ratio; None if unknown."""
        pairs = list(combinations(self.still_in, 2))
        if not pairs or not all(map(self._ran_together, pairs)):
            return None
        return max(map(self._bound, pairs))

    def _leader(self, variants: Sequence[str]) -> str:
        """Return the fastest by the sum of its differences to the others; the first of equal ones."""

        def slowness(name: str) -> float:
            others = [
                (name, other) for other in variants if other != name and self._ran_together((name, other))
            ]
            return round(sum(self._quantile(pair, 0.5) for pair in others), 6)  # equal ones are equal

        with_runs = [name for name in variants if self._runs[name].step_times_s]
        return min(with_runs or variants, key=slowness)

    def state(self, *, budget_used_up: bool = False) -> TrialState:
        """Return where the trial stands; `budget_used_up` ends it unless it has ended before."""
        reason = self.reason or ("budget used up" if budget_used_up else None)
        spread = self._spread
        open_pairs = tuple(pair for pair in combinations(self.still_in, 2) if self._is_open(pair))
        further = self._further_rounds(open_pairs)
        return TrialState(
            round=self.rounds,
            variants=tuple(self._variant_state(name, reason) for name in self.variants),
            still_in=self.still_in,
            ended=reason is not None,
            reason=reason,
            best=self.best,
            within_percent=None if spread is None else _percent(spread),
            open_pairs=open_pairs,
            further_rounds=further,
            further_runs=None if further is None else further * len(self.still_in),
            by_round=tuple(
                RoundDifference(number, pair[0], *map(_percent, difference))
                for number, differences in enumerate(self._by_round, start=1)
                for pair, difference in differences.items()
                if pair[1] == self.best
            ),
        )

    def _variant_state(self, name: str, reason: TrialEnd | None) -> VariantState:
        runs = self._runs[name].step_times_s
        median = statistics.median(runs) if runs else None
        left = self._left.get(name)
        if left is not None:
            return VariantState(
                name,
                left.status,
                len(runs),
                median,
                left.round,
                left.cause,
                left.compared_with,
                *map(_percent, left.difference),
            )
        if name == self.best:
            return VariantState(name, "best", len(runs), median)
        status: VariantStatus = "within" if reason == "within" else "racing"
        if self.best is None or not self._ran_together((name, self.best)):
            return VariantState(name, status, len(runs), median)
        pair = name, self.best
        difference = self._narrowed(pair, *self._difference(pair))
        return VariantState(
            name, status, len(runs), median, None, None, self.best, *map(_percent, difference)
        )

    def _is_open(self, pair: tuple[str, str]) -> bool:
        """Return whether two that are in are not shown to be within the least difference."""
        return not self._ran_together(pair) or self._bound(pair) > self._least

    def _further_rounds(self, open_pairs: Sequence[tuple[str, str]]) -> int | None:
        """Return an estimate of the rounds that decide the open pairs, if they are as they seem now."""
        if not open_pairs:
            return 0
        rounds = []
        for pair in open_pairs:
            if not self._ran_together(pair):
                return None
            difference = abs(self._difference(pair)[0])
            deviation = math.sqrt(2) * self._evidence.deviation(self._numbered(pair))
            ways = [(difference, self._slower_level()), (self._least - difference, self._within_level())]
            errors = max(
                distance / (_NORMAL.inv_cdf(1 - level) + _NORMAL.inv_cdf(_DECIDED))
                for distance, level in ways
            )
            rounds.append(_ROUND_COST * (deviation / max(errors, 1e-9)) ** 2 - self.rounds)
        further = max(rounds)
        return max(1, math.ceil(further)) if further <= _FARTHEST_ROUNDS else None


def _percent(log_ratio: float) -> float:
    """Return the difference in percent of 100 × the logarithm of a ratio."""
    return 100 * math.expm1(log_ratio / 100)
