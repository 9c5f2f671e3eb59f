"""Samples of GPUs and links: a run's power and energy, and nodes that differ from the others."""

import json
import random

import pytest
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.node import describe_node
from steptime.logs.training_log import TrainingLog
from steptime.measure.gpu_samples import gpu_samples, what_stands_apart
from steptime.measure.metrics import measure, measure_window
from steptime.measure.stragglers import rank_times
from steptime.store.run_queries import Store

SIX_TWELVE = 1_795_846_320.0
"""2026-11-28 06:12 UTC."""


def node(name, gpus=8, seed=0, *, hot=(), **other):
    """Return the summary of a node whose GPUs in `hot` are throttled by heat."""
    rng = random.Random(f"{name} {seed}")  # noqa: S311
    clocks = [1410 if gpu in hot else round(rng.gauss(1755, 20)) for gpu in range(gpus)]
    heat = {"hw_thermal_slowdown": [85.0 if gpu in hot else 0.0 for gpu in range(gpus)]}
    return {
        **{
            "node": name,
            "gpus": [*range(gpus)],
            "samples": 240,
            "power_w": [600.0 + gpu for gpu in range(gpus)],
        },
        **{"sm_clock_mhz": clocks, "least_sm_clock_mhz": clocks, "memory_clock_mhz": [2619] * gpus},
        "clocks_down_since": SIX_TWELVE if hot else None,
        "temperature_c": [89 if gpu in hot else round(rng.gauss(58, 2)) for gpu in range(gpus)],
        "slowed_percent": {"sw_power_cap": [100.0] * gpus, **(heat if hot else {})},
        **{"corrected_ecc_errors": [0] * gpus, "uncorrected_ecc_errors": [0] * gpus},
        **{"link_errors": {}, "xid_errors": None},
        **other,
    }


def record(*nodes):
    steps = {"first_step": 30, "last_step": 49}
    return steps | {"began_at": SIX_TWELVE - 90, "ended_at": SIX_TWELVE + 150, "nodes": list(nodes)}


def said(*nodes):
    samples = gpu_samples(record(*nodes))
    assert samples is not None
    return what_stands_apart(None, samples)


def others(count=4, seed=0, gpus=8):
    return [node(f"gb-{number:03}", gpus, seed) for number in range(count)]


def test_a_node_with_throttled_clocks_is_named_with_its_values():
    sentence = said(*others(), node("gb-017", hot=(3,)))
    assert sentence is not None
    hotter, rest = sentence.split(", ", 1)
    degrees = int(hotter.removeprefix("node gb-017: ").removesuffix(" °C hotter"))
    assert 25 <= degrees <= 32
    assert rest == "clocks down to 1,410 MHz since 06:12 UTC, slowed down by heat in 85 % of the samples"


def test_a_node_with_link_errors_is_named_and_few_of_them_are_not():
    few, many = {"mlx5_0/1 symbol_error": 7}, {"mlx5_2/1 symbol_error": 1200, "GPU 3 NVLink 5 crc": 4}
    assert said(*others(), node("gb-017", link_errors=few)) is None
    sentence = "node gb-017: 1,204 new link errors (most: mlx5_2/1 symbol_error)"
    assert said(*others(), node("gb-017", link_errors=many)) == sentence
    everywhere = [node(f"gb-{number}", link_errors=many) for number in range(4)]
    assert said(*everywhere) is None
    assert said(node("gb-017", link_errors={"mlx5_2/1 link_downed": 1})) == (
        "node gb-017: 1 new link error (most: mlx5_2/1 link_downed)"
    )


def test_errors_of_a_gpu_are_named():
    broken = node("gb-017", uncorrected_ecc_errors=[0, 2, None, 0, 0, 0, 0, 0], xid_errors=["Xid 48 (ECC)"])
    assert said(broken) == "node gb-017: 2 new uncorrected ECC errors, Xid 48 (ECC)"


def test_on_few_nodes_gpus_are_compared_with_one_another():
    sentence = said(node("gb-000"), node("gb-017", hot=(3,)))
    assert sentence is not None
    assert sentence.startswith("node gb-017: GPU 3 ")
    assert "°C hotter, GPU 3 clocks down to 1,410 MHz since 06:12 UTC" in sentence


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (1, 8), (2, 8), (4, 4), (16, 8)])
def test_alike_nodes_are_hardly_ever_named(nodes, gpus):
    assert sum(said(*others(nodes, seed, gpus)) is not None for seed in range(100)) <= 1


def test_what_gpus_do_not_report_is_left_out():
    silent = dict.fromkeys(
        ("power_w", "sm_clock_mhz", "least_sm_clock_mhz", "memory_clock_mhz", "temperature_c"), [None] * 8
    )
    samples = gpu_samples(record(*(node_record | silent for node_record in others())))
    assert samples is not None
    assert (samples.clauses, samples.mean_power_w, samples.summary) == ({}, None, " (32 GPUs)")


@pytest.mark.parametrize(
    "broken",
    [
        {"power_w": [600.0]},
        {"slowed_percent": {"sw_power_cap": [1.0]}},
        {"clocks_down_since": 1e300},
        {"sm_clock_mhz": [float("nan")] * 8},
        {"samples": 0},
    ],
)
def test_a_broken_record_is_left_out(broken):
    assert gpu_samples(record(node("gb-017"))) is not None
    assert gpu_samples(record(node("gb-017", **broken))) is None
    assert gpu_samples(record()) is None
    assert gpu_samples(None) is None


def test_a_slow_node_has_one_sentence_for_its_ranks_and_its_gpus():
    samples = gpu_samples(record(*others(3), node("gb-017", hot=(0,))))
    ranks = [1.06 if rank >= 24 else 1 + 0.001 * (rank % 4) for rank in range(32)]
    times = rank_times(
        {
            **{"clock": "cuda_events", "steps": [30], "nodes": ["gb-000", "gb-001", "gb-002", "gb-017"]},
            **{"node": [rank // 8 for rank in range(32)], "group": [0] * 32, "seconds": ranks},
        }
    )
    sentence = what_stands_apart(times, samples)
    assert sentence is not None
    assert sentence.startswith("node gb-017: ranks 5.8 % slower than the others (")
    assert "%), 3" in sentence or "%), 2" in sentence
    assert "°C hotter, clocks down to 1,410 MHz since 06:12 UTC" in sentence
    assert ";" not in sentence


def test_energy_is_that_of_all_gpus_over_the_steps(tmp_path, make_result, monkeypatch):
    """2 GPUs of 600.5 W on average train 16 samples of 128 tokens in each step of half a second."""
    result = make_result("job-1", step_times=[0.5] * 20)
    sizes = {"seq_length": 128, "global_batch_size": 16, "world_size": 2}
    samples = record(node("gb-017", 2, hot=(1,), link_errors={"mlx5_0/1 link_downed": 3}))
    log = TrainingLog.model_validate(
        result.log.model_dump() | {"gpu_samples": samples, "started": (result.log.started or {}) | sizes}
    )
    for measured in (measure(result.run, log), measure_window(log, result.run.window)):
        assert measured.gpu_power_mean_w == 600.5
        assert measured.energy_per_step_j == 600.5
        assert measured.joules_per_token == 600.5 / 2048
    assert measure(result.run, result.log).joules_per_token is None

    store = Store(f"sqlite:///{tmp_path / 'steptime.db'}")
    text = json.dumps(json.loads(result.record) | {"nodes": ["gb-017"]})
    publish(store, make_result("job-1", log=log, measurement=measure(result.run, log), record=text))
    row = store.run("job-1")
    assert row["energy_per_step_j"] == 600.5
    assert row["stragglers"].startswith("node gb-017: slowed down by heat in 85 % of the samples, 3 new link")
    [run] = describe_node(store, "local", "gb-017", now=1.79e9 + 3600)["runs"]
    assert run["gpus"].startswith("600 W, 1,5")
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    shown = CliRunner().invoke(app, ["results", "show", "job-1", "--format", "csv"])
    assert "at most 89 °C (2 GPUs)" in shown.stdout
