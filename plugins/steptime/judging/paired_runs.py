"""Intervals of the differences between variants that run once in each round.

A variant's level is 100 times the natural logarithm of its step time. A run adds the effect of its round and
noise. The difference of two runs of a round is free of the round's effect: it is normal around the true
difference of their variants, but wider in a share of rounds, in which something disturbed one of the two runs
(the contaminated normal model; Box and Tiao, 1968). The deviation of the noise is not known: likelihoods are
averages over possible deviations, weighted by what is known before the first round and by the other pairs.

The interval of a difference has the quantiles of its likelihood. For a difference, which only shifts what is
measured, these are confidence limits (Fisher, 1934; Pitman, 1939): if the noise is normal and nothing known
about it, they are those of Student's t.

Import this module only when it is needed: it imports numpy.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Indexes = np.ndarray[tuple[int, ...], np.dtype[np.intp]]

LEAST_NOISE = 0.3
"""Least deviation of a run in percent that is taken as known: a few runs may be equal by chance."""
_DEVIATIONS: Numbers = np.geomspace(0.25, 217, 25)
"""Possible standard deviations of an undisturbed run, in percent.

The largest is far above any real noise: after two or three rounds, the limits are those of Student's t only
if much larger deviations are possible than these rounds show.
"""
_KNOWN_WEIGHT = 0.7
"""Weight of what is known about the noise before the first round; other deviations share the rest."""
_KNOWN_SPREADS = 0.25, 0.6
"""Standard deviations of the logarithm of the true over the known deviation, below and above it."""
_POOLED_FREEDOM = 8.0
"""Most degrees of freedom that other pairs contribute to the deviation of a pair, so that its own count."""
_DISTURBED_SHARE = 0.1
"""Share of differences within a round that are disturbed."""
_DISTURBED_PERCENT = 5.0
"""Least scale of the Cauchy distribution of disturbed differences."""
_DISTURBED_TIMES = 2.0
"""Least scale in deviations of an undisturbed run: a disturbed difference scatters more than others."""
_FINE = np.arange(-100, 101) * 0.1
_COARSE = np.geomspace(_FINE[-1], 1000, 40)[1:]
_OFFSETS: Numbers = np.concatenate([-_COARSE[::-1], _FINE, _COARSE])
"""Differences for which likelihoods are computed, in percent from the centre of a pair's differences."""
_WIDTHS: Numbers = np.gradient(_OFFSETS)
_FARTHEST_CENTRE = 3.0
"""Most distance of the middle difference of a pair from its centre: near it, points are close together."""


class PairedRuns:
    """The evidence about all pairs of variants, which grows by rounds; differences are 100 × log ratios."""

    def __init__(self, variants: int, *, known_noise: float | None) -> None:
        """Begin without runs.

        `known_noise` is the deviation of a run in percent as far as it is known beforehand; None if unknown.
        """
        self.pairs = list(combinations(range(variants), 2))
        self._first, self._second = np.array(self.pairs, dtype=np.intp).reshape(-1, 2).T
        self._variants = variants
        self._log_prior = _log_prior(known_noise)
        self._differences: Numbers = np.empty((len(self.pairs), 0))
        self._centres = np.zeros(len(self.pairs))
        self._likelihoods = np.zeros((len(self.pairs), len(_DEVIATIONS), len(_OFFSETS)))

    def add_round(self, levels: Mapping[int, float]) -> None:
        """Add a round: 100 × the logarithm of the step time by the number of the variant that ran."""
        values = np.full(self._variants, np.nan)
        for variant, level in levels.items():
            values[variant] = level
        new = values[self._first] - values[self._second]
        self._differences = np.column_stack([self._differences, new])
        ran = np.flatnonzero(np.isfinite(new))
        is_far = np.zeros(len(self.pairs), dtype=bool)
        for pair in ran:
            middle = _middle(self._differences[pair])
            is_far[pair] = abs(middle - self._centres[pair]) > _FARTHEST_CENTRE
            if is_far[pair]:
                self._centres[pair] = round(middle)
        near = ran[~is_far[ran]]
        self._likelihoods[near] += self._log_densities(near, new[near])
        for pair in np.flatnonzero(is_far):
            seen = self._differences[pair][np.isfinite(self._differences[pair])]
            self._likelihoods[pair] = self._log_densities(np.full(len(seen), pair), seen).sum(axis=0)

    def _log_densities(self, pairs: Indexes, differences: Numbers) -> Numbers:
        """Return the logarithm of the density of one difference of each pair: (pairs, deviations, points)."""
        residuals = differences[:, None] - self._centres[pairs, None] - _OFFSETS
        return _log_density(residuals[:, None, :], _DEVIATIONS[:, None])

    def evidence(self, variants: Iterable[int]) -> "PairEvidence":
        """Return what the rounds so far say about those pairs of some variants that ran together."""
        rounds = np.isfinite(self._differences).sum(axis=1)
        numbers = list(variants)
        ran = np.flatnonzero(np.isin(self._first, numbers) & np.isin(self._second, numbers) & (rounds > 0))
        by_deviation = _log_sum(self._likelihoods[ran] + np.log(_WIDTHS), axis=2)
        log_weights = self._log_prior + self._of_other_pairs(by_deviation, rounds[ran])
        log_weights -= _log_sum(log_weights, axis=1)[:, None]
        log_shares = _log_sum(self._likelihoods[ran] + log_weights[:, :, None], axis=1) + np.log(_WIDTHS)
        log_weights += by_deviation
        weights = np.exp(log_weights - _log_sum(log_weights, axis=1)[:, None])
        return PairEvidence(
            pairs=[self.pairs[index] for index in ran],
            limits=self._centres[ran, None] + _OFFSETS + _WIDTHS / 2,
            cumulated=np.cumsum(np.exp(log_shares - _log_sum(log_shares, axis=1)[:, None]), axis=1),
            deviations=np.exp(weights @ np.log(_DEVIATIONS)),
        )

    @staticmethod
    def _of_other_pairs(by_deviation: Numbers, rounds: Indexes) -> Numbers:
        """Return the logarithm of the weight of each deviation, for each pair, by the runs of the others.

        The differences of n variants are n (n - 1) / 2 for each round, of which n - 1 are independent.
        """
        if len(rounds) < 2:
            return np.zeros_like(by_deviation)
        variants = (1 + math.sqrt(1 + 8 * len(rounds))) / 2
        freedom = float((rounds - 1).sum())
        share = min(2 / variants, _POOLED_FREEDOM / max(freedom, 1.0))
        weights: Numbers = share * (by_deviation.sum(axis=0) - by_deviation)
        return weights


class PairEvidence:
    """What the rounds so far say about the differences of pairs of variants: 100 × log ratios."""

    def __init__(
        self, *, pairs: Sequence[tuple[int, int]], limits: Numbers, cumulated: Numbers, deviations: Numbers
    ) -> None:
        """Take, for each pair, the share of the likelihood below each of some differences."""
        self._index = {pair: index for index, pair in enumerate(pairs)}
        self._limits = limits
        self._cumulated = cumulated
        self._deviations = deviations

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return pair in self._index or pair[::-1] in self._index

    def _at(self, pair: tuple[int, int]) -> tuple[int, int]:
        """Return the index of a pair, and -1 if its order is reversed, else 1."""
        return (self._index[pair], 1) if pair in self._index else (self._index[pair[::-1]], -1)

    def quantile(self, pair: tuple[int, int], probability: float) -> float:
        """Return the limit that how much the first is slower is below with this probability."""
        index, sign = self._at(pair)
        probability = probability if sign > 0 else 1 - probability
        return sign * float(np.interp(probability, self._cumulated[index], self._limits[index]))

    def deviation(self, pair: tuple[int, int]) -> float:
        """Return the estimated deviation of an undisturbed run."""
        return float(self._deviations[self._at(pair)[0]])


def _log_prior(known_noise: float | None) -> Numbers:
    """Return the logarithm of the weight of each deviation before the first round.

    All are alike if nothing is known. A known one has most of the weight, and larger ones some.
    """
    if known_noise is None:
        return np.zeros(len(_DEVIATIONS))
    known_noise = min(max(known_noise, LEAST_NOISE), float(_DEVIATIONS[-1]))
    spreads = np.where(known_noise > _DEVIATIONS, *_KNOWN_SPREADS)
    known = np.exp(-((np.log(_DEVIATIONS / known_noise) / spreads) ** 2) / 2)
    others = 1 / np.maximum(_DEVIATIONS, known_noise)
    weights: Numbers = _KNOWN_WEIGHT * known / known.sum() + (1 - _KNOWN_WEIGHT) * others / others.sum()
    return np.log(weights)


def _middle(differences: Numbers) -> float:
    """Return the median; of an even number of differences, the middle one that is nearer to zero."""
    seen = np.sort(differences[np.isfinite(differences)])
    return float(min(seen[(len(seen) - 1) // 2], seen[len(seen) // 2], key=abs))


def _log_density(residuals: Numbers, deviations: Numbers) -> Numbers:
    """Return the logarithm of the density of differences (less the true one) within a round."""
    variances = 2 * deviations**2
    usual = np.exp(-(residuals**2) / (2 * variances)) / np.sqrt(2 * math.pi * variances)
    scales = np.maximum(_DISTURBED_PERCENT, _DISTURBED_TIMES * deviations)
    disturbed = 1 / (math.pi * scales * (1 + (residuals / scales) ** 2))
    densities: Numbers = np.log((1 - _DISTURBED_SHARE) * usual + _DISTURBED_SHARE * disturbed)
    return densities


def _log_sum(numbers: Numbers, axis: int) -> Numbers:
    """Return the logarithm of the sum of exponentials along an axis."""
    largest = numbers.max(axis=axis, keepdims=True)
    sums: Numbers = np.squeeze(largest, axis=axis) + np.log(np.exp(numbers - largest).sum(axis=axis))
    return sums
