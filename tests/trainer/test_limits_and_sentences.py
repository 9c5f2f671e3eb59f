"""Limits of the watchdog and of samples, at each limit and beside it, and each sentence about a hang."""

import math
from types import SimpleNamespace

import pytest

from trainer import gpu_samples, watchdog
from trainer.errors import TrainerError
from trainer.gpu_samples import Sample, Sampler, clocks_down_since, read_sample
from trainer.hyperparameters import learning_rate
from trainer.launch import Launch
from trainer.progress import CheckpointTransfer, Progress
from trainer.watchdog import HangLimits


def run(**fields):
    default = {"mode": "performance", "first_step": 0, "max_steps": 50, "window": None}
    return SimpleNamespace(**{**default, **fields})


@pytest.mark.parametrize(
    ("text", "floor_s"),
    [(None, 300.0), ("1", 1.0), ("0.001", 0.001), ("0", None), ("-1", None), ("nan", None), ("soon", None)],
)
def test_a_floor_is_a_positive_number_of_seconds(text, floor_s):
    environment = {} if text is None else {"STEPTIME_HANG_FLOOR_S": text}
    if floor_s is None:
        with pytest.raises(TrainerError, match=f"STEPTIME_HANG_FLOOR_S='{text}' .* is not a positive number"):
            HangLimits.read(environment)
    else:
        assert HangLimits.read(environment) == HangLimits(floor_s=floor_s)


@pytest.mark.parametrize(
    ("fields", "step", "limit_s", "where"),
    [
        ({}, None, 1800.0, "no step has ended within 75 s of the start"),
        ({"steps": 1}, 0, 1800.0, "no step has ended within 75 s of step 0"),
        ({"steps": 2, "times": [10.0]}, 1, 300.0, "75 s of step 1, and the median step takes 10 s"),
        ({"steps": 2, "times": [10.5]}, 1, 315.0, "75 s of step 1, and the median step takes 10.5 s"),
        ({"steps": 49, "times": [12.0]}, 48, 360.0, "75 s of step 48, and the median step takes 12 s"),
        ({"steps": 50, "times": [12.0]}, 49, 1800.0, "it has not ended within 75 s of its last step, 49"),
        ({"steps": 50, "times": [12.0], "mode": "checkpoint_save"}, 49, math.inf, "of its last step, 49"),
        ({"steps": 49, "times": [12.0], "mode": "checkpoint_save"}, 48, 360.0, "75 s of step 48"),
        ({"mode": "checkpoint_load"}, None, math.inf, "within 75 s of the start"),
        ({"steps": 1, "mode": "checkpoint_load"}, 0, 1800.0, "75 s of step 0"),
        ({"steps": 2, "times": [12.0], "notes_steps": False}, 1, math.inf, "75 s of step 1"),
    ],
)
def test_how_long_a_step_may_take_and_what_is_said_then(fields, step, limit_s, where):
    progress = Progress(run=run(mode=fields.get("mode", "performance")), step=step)
    progress.steps_trained, progress.notes_steps = fields.get("steps", 0), fields.get("notes_steps", True)
    progress.wall_times_s.extend(fields.get("times", ()))
    assert HangLimits().of(progress) == limit_s
    assert where in watchdog._where(progress, 75.4)


@pytest.mark.parametrize(
    ("silent", "ranks", "sentence"),
    [
        ([], 1, "the stacks of 1 rank are in the log"),
        ([], 2, "the stacks of 2 ranks are in the log"),
        ([5], 8, "the stacks of 7 ranks are in the log, but none of rank 5"),
        ([*range(8)], 16, "the stacks of 8 ranks are in the log, but none of rank 0, 1, 2, 3, 4, 5, 6, 7"),
        (
            *([*range(9)], 2048),
            "the stacks of 2039 ranks are in the log, but none of rank 0, 1, 2, 3, 4, 5, 6, 7, …",
        ),
    ],
)
def test_which_ranks_shared_their_stacks(silent, ranks, sentence):
    assert watchdog._shown(silent, ranks) == sentence


@pytest.mark.parametrize(
    ("size", "duration_s", "blocked_s", "rate"),
    [(160 * 10**9, 80.0, 2.5, 2.0), (80 << 30, 1.0, 1.0, 85.89934592), (1, 0.0, 0.0, None)],
)
def test_a_transfer_has_its_rate(size, duration_s, blocked_s, rate):
    numbers = {"size_bytes": size, "duration_s": duration_s, "blocked_s": blocked_s, "gb_per_s": rate}
    assert CheckpointTransfer("save", size, duration_s, blocked_s).as_record() == {"kind": "save"} | numbers


def test_the_usual_step_is_the_median_of_the_last_fifty(monkeypatch):
    ends = iter([0.0, 10.0, *(10.0 + 0.5 * step for step in range(1, 51))])
    monkeypatch.setattr("time.perf_counter", lambda: next(ends))
    progress = Progress(moved_at=-100.0)
    progress.step_ended(20)
    assert (progress.usual_step_s, progress.wall_time_s, progress.moved_at) == (None, None, 0.0)
    progress.step_ended(21)
    assert (progress.usual_step_s, progress.wall_time_s, progress.steps_trained) == (10.0, 10.0, 2)
    for step in range(22, 72):
        progress.step_ended(step)
    assert (progress.step, progress.steps_trained, [*progress.wall_times_s]) == (71, 52, [0.5] * 50)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 1 / 2001), (1, 2 / 2001), (1999, 2000 / 2001), (2000, 1.0), (2001, 1.0)]
)
def test_the_rate_rises_until_the_warm_up_is_over(step, rate):
    settings = SimpleNamespace(learning_rate=None, warmup_steps=None)
    on_gpus = SimpleNamespace(settings=settings, recipe=SimpleNamespace(gpu_type="h100"))
    assert learning_rate(on_gpus, step) == pytest.approx(3e-4 * rate)
    on_cpu = SimpleNamespace(settings=settings, recipe=SimpleNamespace(gpu_type="cpu"))
    assert learning_rate(on_cpu, step) == pytest.approx(3e-4 * min(1, (step + 1) / 11))


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"window": (35, 44)}, range(25, 45)),
        ({"window": (25, 44)}, range(25, 45)),
        ({"window": (24, 44)}, range(24, 45)),
        ({"window": (30, 49)}, range(30, 50)),
        ({"window": (49, 49)}, range(30, 50)),
        ({}, range(30, 50)),
        ({"max_steps": 20}, range(10, 20)),
        ({"max_steps": 41}, range(21, 41)),
        ({"first_step": 20, "max_steps": 31}, range(25, 31)),
        ({"max_steps": 1}, range(1)),
    ],
)
def test_which_steps_are_sampled(fields, steps):
    if "window" in fields:
        first, last = fields["window"]
        fields = fields | {"window": SimpleNamespace(first=first, last=last)}
    assert gpu_samples.sampled_steps(run(**fields)) == steps


def sample(at, **fields):
    default = {"gpu": 0, "power_w": 700.0, "sm_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0}
    default |= {
        "temperature_c": 60.0,
        "corrected_ecc_errors": 0.0,
        "uncorrected_ecc_errors": 0.0,
        "reasons": 0,
    }
    return Sample(at=at, **{**default, **fields})


@pytest.mark.parametrize(
    ("clocks", "since"),
    [
        ([], None),
        ([2000], None),
        ([2000, 1900], None),  # 95 % is not low
        ([2000, 1899], 2.0),
        ([1899, 2000], None),
        ([2000, 1899, 1899], 2.0),
        ([2000, 1899, 1900, 1899], 4.0),
        ([2000, None, 1899, None], 3.0),
    ],
)
def test_since_when_clocks_are_low(clocks, since):
    samples = [sample(at, sm_clock_mhz=clock) for at, clock in enumerate(clocks, 1)]
    assert clocks_down_since(samples) == since


def test_a_summary_has_each_number_of_each_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    errors = {"mlx5_0/1 symbol_error": 7, "GPU 3 NVLink 5 replay": 9, "unchanged": 4, "new": 2}
    monkeypatch.setattr(gpu_samples, "link_errors", lambda: errors)
    monkeypatch.setattr(gpu_samples.gpu_health, "hardware_errors", lambda hours: [f"within {hours:.1f} h"])
    monkeypatch.setattr("time.time", lambda: 1000.0 + 1800.0)
    sampler = Sampler(tmp_path / "samples.csv", "0,3")
    sampler._began_at, sampler._link_errors = 1000.0, {**errors, "mlx5_0/1 symbol_error": 2}
    del sampler._link_errors["new"]
    sampler.samples = [
        sample(9.9, corrected_ecc_errors=1.0, temperature_c=99.0),
        sample(9.9, gpu=3, uncorrected_ecc_errors=None),
        sample(10.0, reasons=0x04, temperature_c=61.0, corrected_ecc_errors=1.0),
        sample(10.0, gpu=3, sm_clock_mhz=1980.0, power_w=None),
        sample(11.0, power_w=600.0, temperature_c=64.0, memory_clock_mhz=2600.0, corrected_ecc_errors=3.0),
        sample(11.0, gpu=3, sm_clock_mhz=1410.0, reasons=0x48, power_w=None),
        sample(12.0, gpu=3, sm_clock_mhz=1410.0, reasons=0x80, power_w=None),
        sample(12.1, temperature_c=99.0, power_w=1.0, corrected_ecc_errors=4.0),
    ]
    assert sampler.summary(10.0, 12.0) == {
        **{"node": "node7", "gpus": [0, 3], "samples": 2, "power_w": [650.0, None]},
        **{"sm_clock_mhz": [1980.0, 1600.0], "least_sm_clock_mhz": [1980.0, 1410.0]},
        **{"clocks_down_since": 11.0, "memory_clock_mhz": [2609.5, 2619.0], "temperature_c": [64.0, 60.0]},
        "slowed_percent": {
            **{"sw_power_cap": [50.0, 0.0], "hw_slowdown": [0.0, 33.3], "hw_thermal_slowdown": [0.0, 33.3]},
            "hw_power_brake_slowdown": [0.0, 33.3],
        },
        **{"corrected_ecc_errors": [3, 0], "uncorrected_ecc_errors": [0, None]},
        **{"link_errors": {"mlx5_0/1 symbol_error": 5}, "xid_errors": ["within 0.5 h"]},
    }
    assert sampler.summary(12.2, 20.0) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "3, 699.9, 1980, 2619, 61, 1, 2, 0x0000000000000024\n",
            (3, 699.9, 1980.0, 2619.0, 61.0, 1.0, 2.0, 0x24),
        ),
        ("0, [N/A], 1980, 2619, 61, [N/A], 0, Not Active", (0, None, 1980.0, 2619.0, 61.0, None, 0.0, 0)),
        ("3, 699.9, 1980, 2619, 61, 1, 2", None),
        ("3, 699.9, 1980, 2619, 61, 1, 2, 0x0, 1", None),
        ("x, 699.9, 1980, 2619, 61, 1, 2, 0x0", None),
        ("", None),
    ],
)
def test_a_line_of_nvidia_smi_has_each_value_in_its_place(line, expected):
    read = read_sample(line, 5.0)
    assert (read and tuple(read)) == (expected and (5.0, *expected))


@pytest.mark.parametrize(("world", "local", "nodes"), [(1, 1, 1), (8, 8, 1), (16, 8, 2), (2048, 4, 512)])
def test_ranks_are_on_nodes_of_equal_size(world, local, nodes):
    launch = Launch(
        rank=0, world_size=world, local_world_size=local, threads=1, by_launcher=True, on_one_host=False
    )
    assert launch.nodes == nodes
