"""Trials: what is decided of variants that run once in each round, and how often that is wrong.

docs/reference/trials.md has the rates, from benchmarks/trial_rates.py with other seeds.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import assert_kept

from steptime.judging.group_sequential import levels
from steptime.judging.trials import Observation, VariantState, decide


def observed(rounds):
    """Return an observation for each step time (seconds) of each round."""
    return [
        Observation(variant, number, time)
        for number, times in enumerate(rounds, start=1)
        for variant, time in times.items()
    ]


def state_of(trial, variant):
    """Return the state of one variant."""
    return next(state for state in trial.variants if state.variant == variant)


def decided(variants, rounds, **options):
    """Return the state after these rounds with a least difference of 1.5 % and known noise of 0.5 %."""
    known = {"least_difference_percent": 1.5, "known_noise_percent": 0.5}
    return decide(variants, observed(rounds), **known | options)  # type: ignore[arg-type]


def test_a_slower_variant_leaves_with_its_difference():
    rounds = [
        {"default": 10.0, "ring": 10.5},
        {"default": 10.2, "ring": 10.7},
        {"default": 9.9, "ring": 10.4},
    ]
    trial = decided(["default", "ring"], rounds)
    assert (trial.reason, trial.best, trial.still_in) == ("one left", "default", ("default",))
    ring = state_of(trial, "ring")
    assert (ring.status, ring.compared_with) == ("slower", "default")
    assert ring.left_round == trial.round <= 3
    assert ring.low_percent is not None
    assert ring.difference_percent == pytest.approx(5, abs=0.2)
    assert 0 < ring.low_percent < ring.difference_percent < (ring.high_percent or 0)
    assert state_of(trial, "default") == VariantState(
        "default", "best", ring.runs, pytest.approx(10.1, abs=0.1)
    )
    assert trial.further_rounds == trial.further_runs == 0


def test_equal_variants_end_as_within():
    rounds = [{"default": 10.0 + n / 10, "ring": 10.02 + n / 10} for n in range(16)]
    trial = decided(["default", "ring"], rounds)
    assert (trial.reason, trial.open_pairs) == ("within", ())
    assert trial.within_percent is not None
    assert trial.within_percent <= 1.5
    ring = state_of(trial, "ring")
    assert ring.status == "within"
    assert -1.5 <= (ring.low_percent or -9) < 0.2 < (ring.high_percent or 9) <= 1.5


def test_the_differences_to_the_best_are_told_for_each_round_in_which_a_variant_was_in():
    variants = ["default", "ring", "tree"]
    rounds = [{"default": 10.0 + n / 10, "ring": 10.5 + n / 10, "tree": 10.06 + n / 10} for n in range(16)]
    trial = decided(variants, rounds)
    left = state_of(trial, "ring").left_round
    assert left is not None
    assert left < trial.round
    shown = {variant: [one for one in trial.by_round if one.variant == variant] for variant in variants}
    assert {variant: [one.round for one in told] for variant, told in shown.items()} == {
        "default": [],
        "ring": list(range(1, left + 1)),
        "tree": list(range(1, trial.round + 1)),
    }
    widths = [one.high_percent - one.low_percent for one in shown["tree"]]
    assert widths[-1] < widths[0]
    for variant in ("ring", "tree"):
        state = state_of(trial, variant)
        numbers = (state.difference_percent, state.low_percent, state.high_percent)
        assert numbers == shown[variant][-1][2:]


def test_before_the_first_complete_round_nothing_is_known():
    trial = decided(["a", "b"], [{"a": 10.0}])
    assert (trial.round, trial.ended, trial.best, trial.still_in) == (0, False, None, ("a", "b"))
    assert (trial.open_pairs, trial.further_rounds, trial.within_percent) == ((("a", "b"),), None, None)
    assert {state.status for state in trial.variants} == {"racing"}


def test_a_variant_that_cannot_run_leaves_at_once():
    refused = Observation("big", 1, None, "out of memory")
    trial = decide(["a", "b", "big"], [refused], least_difference_percent=1.5)
    assert (trial.round, trial.still_in, trial.ended) == (0, ("a", "b"), False)
    big = state_of(trial, "big")
    assert (big.status, big.left_round, big.cause) == ("cannot run", 1, "out of memory")
    whole = decide(
        ["a", "b", "big"], [refused, *observed([{"a": 10.0, "b": 10.0}])], least_difference_percent=1.5
    )
    assert whole.round == 1


@pytest.mark.parametrize(
    ("refused", "reason", "best"), [(["b"], "one left", "a"), (["a", "b"], "none can run", None)]
)
def test_ends_without_others_that_can_run(refused, reason, best):
    refusals = [Observation(name, 1, None, "refused") for name in refused]
    trial = decide(["a", "b"], refusals, least_difference_percent=1.5)
    assert (trial.reason, trial.best, trial.further_rounds) == (reason, best, 0)


def test_one_variant_needs_no_run():
    trial = decide(["a"], [], least_difference_percent=1.5)
    assert (trial.ended, trial.reason, trial.best, trial.round) == (True, "one left", "a", 0)


def test_identical_times_are_within_and_the_first_is_best():
    trial = decided(["a", "b", "c"], [dict.fromkeys("abc", 10.0)] * 16)
    assert (trial.reason, trial.best) == ("within", "a")


def test_invalid_runs_are_left_out_of_a_complete_round():
    rounds = [
        {"a": 10.0, "b": 10.5},
        {"a": None, "b": 10.5},
        {"a": 10.0, "b": None},
    ]
    trial = decided(["a", "b"], rounds)
    assert trial.round == 3
    assert [state.runs for state in trial.variants] == [2, 2]


def test_three_rounds_without_a_valid_run_take_a_variant_out():
    rounds = [{"a": 10.0, "b": 10.0, "c": None}] * 3
    trial = decided(["a", "b", "c"], rounds, rounds_max=3)
    gone = state_of(trial, "c")
    assert (gone.status, gone.left_round, gone.runs, gone.step_time_s) == ("cannot run", 3, 0, None)
    assert gone.cause == "no valid run in 3 rounds in a row"
    apart = [{"a": 10.0, "b": 10.0, "c": time} for time in (None, None, 10.0, None)]
    assert decided(["a", "b", "c"], apart, rounds_max=5).still_in == ("a", "b", "c"), "not in a row"


def test_a_variant_that_misses_rounds_is_still_compared():
    rounds = [{"a": 10.0, "b": 10.0, "c": None if number % 2 else 11.0} for number in range(4)]
    assert state_of(decided(["a", "b", "c"], rounds), "c").status == "slower"


def test_one_disturbed_run_decides_nothing():
    trial = decided(["a", "b"], [{"a": 10.0, "b": 14.0}, {"a": 10.0, "b": 10.01}, {"a": 10.0, "b": 9.99}])
    assert trial.still_in == ("a", "b")
    assert abs(state_of(trial, "b").difference_percent or 9) < 0.5


def test_runs_that_scatter_more_than_is_known_overrule_it():
    rounds = [{"a": 10.0, "b": 10.0 * (1 + percent / 100)} for percent in (4, -1, 5, 0, 3)]
    trial = decided(["a", "b"], rounds)
    assert trial.still_in == ("a", "b")
    assert (trial.further_rounds or 0) > 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"rounds_max": 1}, "rounds used up"), ({"budget_used_up": True}, "budget used up")],
)
def test_limits_end_a_trial_with_what_is_open(options, reason):
    trial = decided(["a", "b"], [{"a": 10.0, "b": 10.08}], **options)
    assert (trial.ended, trial.reason, trial.open_pairs) == (True, reason, (("a", "b"),))
    assert trial.further_rounds
    assert trial.further_runs == 2 * trial.further_rounds


def test_a_known_best_ends_before_all_are_within():
    rounds = [{name: 10 + number / 25 for number, name in enumerate("abcd")}] * 16
    both = [decided(list("abcd"), rounds, stop_when=when) for when in ("best known", "all within")]
    assert (both[0].reason, both[0].best) == ("best known", "a")
    assert both[0].round < both[1].round
    alike = decided(list("abc"), [{"a": 10, "b": 10, "c": 10.1}] * 16, stop_when="best known")
    assert alike.reason == "within", "not once it is known to be better than one of the others"


@pytest.mark.parametrize("time", [math.nan, math.inf, 0.0, -1.0])
def test_times_are_positive_and_finite(time):
    with pytest.raises(ValueError, match="'a' has a step time of"):
        decide(["a", "b"], [Observation("a", 1, time)], least_difference_percent=1.5)


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        ([Observation("c", 1, 1.0)], "no variant 'c'"),
        ([Observation("a", 0, 1.0)], "round 0"),
        ([Observation("a", 1, 1.0)] * 2, "two observations in round 1"),
        ([Observation("a", 1, 1.0, "out of memory")], "cannot run"),
    ],
)
def test_observations_that_no_trial_has(observations, message):
    with pytest.raises(ValueError, match=message):
        decide(["a", "b"], observations, least_difference_percent=1.5)


@pytest.mark.parametrize("least", [0.0, -1.0, math.nan, math.inf])
def test_a_least_difference_is_positive(least):
    with pytest.raises(ValueError, match="positive"):
        decide(["a", "b"], [], least_difference_percent=least)


def test_known_noise_is_positive():
    with pytest.raises(ValueError, match="positive"):
        decide(["a", "b"], [], least_difference_percent=1.5, known_noise_percent=0.0)


def test_noise_beyond_all_usual_is_no_evidence():
    rounds = [{"a": 10.0, "b": 10.0 * factor} for factor in (1.5, 0.8, 2.0, 0.9)]
    trial = decided(["a", "b"], rounds, known_noise_percent=100.0)
    assert trial.still_in == ("a", "b")


@pytest.mark.parametrize("variants", [[], ["a", "a"]])
def test_variants_have_different_names(variants):
    with pytest.raises(ValueError, match="name of its own"):
        decide(variants, [], least_difference_percent=1.5)


@pytest.mark.parametrize(
    ("looks", "shape", "critical"),
    [(1, 0.5, 1.960), (5, 0.5, 2.413), (10, 0.5, 2.555), (5, 0, 2.040), (10, 0, 2.087)],
)
def test_levels_are_those_of_published_tables(looks, shape, critical):
    """Pocock (1977), and O'Brien and Fleming (1979): the last look's critical value at 5 %, two sides."""
    last = levels(0.05, looks, shape=shape)[-1]
    assert last == pytest.approx(math.erfc(critical / math.sqrt(2)) / 2, rel=0.025)


times = st.one_of(st.none(), st.floats(1e-3, 1e3))
rounds_of_three = st.lists(st.fixed_dictionaries(dict.fromkeys("abc", times)), max_size=5)


@settings(max_examples=40, deadline=None)
@given(rounds_of_three)
def test_any_times_give_a_consistent_state(rounds):
    trial = decided(list("abc"), rounds, rounds_max=5)
    assert trial == decide(
        list("abc"),
        reversed(observed(rounds)),
        least_difference_percent=1.5,
        known_noise_percent=0.5,
        rounds_max=5,
    )
    left = {state.variant for state in trial.variants if state.left_round is not None}
    assert set(trial.still_in) == set("abc") - left
    assert (trial.best in trial.still_in) or trial.best is None
    assert trial.ended == (trial.reason is not None)
    for state in trial.variants:
        if state.low_percent is not None and state.difference_percent is not None:
            assert state.low_percent <= state.difference_percent <= (state.high_percent or math.inf)
        if state.status == "slower":
            assert (state.low_percent or 0) > 0


def far_off(variants):
    """Return the times of a round in which three variants are far off the others."""
    return {f"v{number}": 10 + number / 100 + 3 * (number >= variants - 3) for number in range(variants)}


def test_many_variants_are_screened_by_the_first_round():
    times = far_off(13)
    trial = decided(list(times), [times])
    assert [name for name in times if name not in trial.still_in] == ["v10", "v11", "v12"]
    aside = state_of(trial, "v12")
    assert (aside.status, aside.left_round, aside.compared_with) == ("set aside", 1, "v0")
    assert aside.difference_percent == pytest.approx(31.2)
    assert (aside.low_percent, aside.high_percent) == (None, None)


@pytest.mark.parametrize(("variants", "known"), [(12, 0.5), (13, None), (13, 6.0)])
def test_few_variants_or_unknown_or_much_noise_are_not_screened(variants, known):
    times = far_off(variants)
    trial = decided(list(times), [times], known_noise_percent=known)
    assert len(trial.still_in) == variants


def test_the_fastest_four_are_not_set_aside():
    times = {f"v{number}": 10 * 1.3**number for number in range(13)}
    assert decided(list(times), [times]).still_in == ("v0", "v1", "v2", "v3")


@pytest.mark.parametrize("noise", [0.5, None])
def test_what_is_known_after_each_round_in_which_something_disturbed_a_run(noise):
    names = ("default", "ring", "tree")
    times = [(10.0, 10.06, 10.21), (10.05, 10.1, 10.2), (9.97, 11.2, 10.14), (10.02, 10.05, None)]
    rounds = [dict(zip(names, one, strict=True)) for one in (*times, *times[:2])]
    told = []
    for number in range(1, len(rounds) + 1):
        trial = decided(names, rounds[:number], known_noise_percent=noise, rounds_max=8)
        told.append(f"round {number}: {trial.reason}, best {trial.best}, open {trial.open_pairs}\n")
        further = f"further: {trial.further_rounds} rounds, {trial.further_runs} runs"
        told.append(f"  within {trial.within_percent or math.nan:.3f}, {further}\n")
        for state in trial.variants:
            numbers = (state.difference_percent, state.low_percent, state.high_percent)
            shown = " ".join("-" if one is None else f"{one:.3f}" for one in numbers)
            told.append(f"  {state.variant} {state.status} {state.left_round} {shown}\n")
        if trial.reason is not None:
            break
    for one in trial.by_round:
        numbers = (one.difference_percent, one.low_percent, one.high_percent)
        shown = " ".join(f"{number:.3f}" for number in numbers)
        told.append(f"{one.variant} after round {one.round}: {shown}\n")
    assert_kept(f"judging/trial-{noise}.txt", "".join(told))
