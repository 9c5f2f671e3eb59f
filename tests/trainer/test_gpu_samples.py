"""Samples of GPUs and links during a training: the summary of a node, and that sampling never holds a job."""

import json
import os
import time

import psutil
import pytest

from steptime.logs.reader import read_log
from steptime.measure.gpu_samples import gpu_samples as parsed
from steptime.measure.gpu_samples import what_stands_apart
from steptime.measure.metrics import measure
from steptime.measure.stragglers import rank_times
from steptime.recipes.models import Parallelism, Performance, TrainerSettings, Window
from steptime.waiting import poll_until
from trainer import gpu_samples
from trainer.gpu_samples import SamplingProcess, clocks_down_since, link_errors, read_sample

from .jobs import ROOT, planned

STAND_INS = ROOT / "tests" / "stand_ins" / "gpu_node"


@pytest.fixture
def node(monkeypatch):
    """Return a function that gives this machine eight H100s with a fault."""
    monkeypatch.setenv("PATH", f"{STAND_INS}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SLURMD_NODENAME", "gb-017")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda fault: monkeypatch.setenv("STAND_IN_GPU_FAULTS", json.dumps({"gb-017": fault}))


def sampled(folder, ranks=4):
    """Return the sampling process's summary of the time in which it took two samples of each GPU."""
    process, began_at = SamplingProcess(folder, ranks), time.time()
    file = folder / "gpu_samples" / "gb-017.csv"
    assert poll_until(
        lambda: file.exists() and len(file.read_text().splitlines()) > 2 * ranks, every_s=0.02, timeout_s=60
    )
    return process.end(began_at, time.time())


@pytest.mark.long
@pytest.mark.parametrize("driver", ["none", "old driver"])
def test_a_node_says_what_its_gpus_did(node, tmp_path, driver):
    node(driver)
    samples = sampled(tmp_path)
    assert samples is not None
    assert samples.pop("samples") >= 2
    assert samples == {
        **{"node": "gb-017", "gpus": [0, 1, 2, 3], "power_w": [612.4] * 4},
        **{"sm_clock_mhz": [1755] * 4, "least_sm_clock_mhz": [1755] * 4, "clocks_down_since": None},
        **{"memory_clock_mhz": [2619] * 4, "temperature_c": [58] * 4},
        "slowed_percent": {"sw_power_cap": [100] * 4},
        **{"corrected_ecc_errors": [0] * 4, "uncorrected_ecc_errors": [0] * 4},
        **{"link_errors": {}, "xid_errors": []},
    }
    first = (tmp_path / "gpu_samples" / "gb-017.csv").read_text().splitlines()[1]
    assert first.partition(",")[2] == "0, 612.40, 1755, 2619, 58, 0, 0, 0x0000000000000004"


@pytest.mark.long
def test_a_throttled_gpu_and_link_errors_are_told(node, tmp_path):
    node("throttled")
    samples = sampled(tmp_path / "throttled")
    assert samples is not None
    assert (samples["sm_clock_mhz"], samples["temperature_c"]) == ([1755] * 3 + [1410], [58] * 3 + [89])
    assert samples["slowed_percent"]["hw_thermal_slowdown"] == [0, 0, 0, 100]
    for fault, counter in (("link errors", "crc"), ("link errors on Blackwell", "rx remote")):
        node(fault)
        samples = sampled(tmp_path / fault)
        assert samples is not None
        assert [*samples["link_errors"]] == [f"GPU 3 NVLink 5 {counter}"]
    node("xid")
    samples = sampled(tmp_path / "xid")
    assert samples is not None
    assert samples["xid_errors"] == ["Xid 79 (fallen off the bus) of the GPU at PCI 0000:41:00"]


@pytest.mark.long
def test_gpus_are_those_that_the_ranks_use(node, tmp_path, monkeypatch):
    node("none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7,1")
    samples = sampled(tmp_path, ranks=2)
    assert samples is not None
    assert samples["gpus"] == [6, 7]


def test_without_a_gpu_there_is_no_summary_and_no_delay(node, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    began = time.monotonic()
    assert SamplingProcess(tmp_path, 1).end(0.0, time.time()) is None
    assert SamplingProcess(tmp_path, 1).end(None, None) is None
    assert time.monotonic() - began < 2 * gpu_samples._ANSWERS_WITHIN_S


@pytest.mark.long
def test_it_ends_with_its_rank(node, tmp_path):
    node("none")
    process = SamplingProcess(tmp_path, 1)._process
    me = psutil.Process(process.pid)
    assert poll_until(me.children, every_s=0.02, timeout_s=60)
    children = [me, *me.children(recursive=True)]
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does when the rank ends
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert process.stdout is not None
    process.stdout.close()
    process.wait()


def test_a_process_that_does_not_answer_is_ended(node, tmp_path, monkeypatch):
    node("none")
    monkeypatch.setattr(gpu_samples, "_ANSWERS_WITHIN_S", 0)
    process = SamplingProcess(tmp_path, 1)
    assert process.end(0.0, 1.0) is None
    assert process._process.wait() < 0


@pytest.mark.parametrize(
    ("max_steps", "window", "steps"),
    [(50, (49, 49), (30, 49)), (50, (11, 44), (11, 44)), (20, (10, 19), (10, 19)), (30, (28, 29), (15, 29))],
)
def test_a_short_window_is_summarised_with_steps_before_it(max_steps, window, steps):
    run = planned(max_steps=max_steps, window=Window(first=window[0], last=window[1]))
    samples = gpu_samples.sampled_steps(run)
    assert (samples[0], samples[-1]) == steps


def test_clocks_are_down_since_they_stay_below_what_they_were():
    def since(*clocks):
        lines = (f"0, 600, {clock}, 2619, 60, 0, 0, 0x0" for clock in clocks)
        samples = [read_sample(line, at) for at, line in enumerate(lines)]
        return clocks_down_since([sample for sample in samples if sample is not None])

    assert since(1755, 1750, 1755) is None
    assert since(1755, 1410, 1755, 1410, 1400) == 3
    assert since(1755, 1410, 1755) is None
    assert since(1410, 1410) is None


def test_what_is_not_reported_is_unknown():
    assert read_sample('Field "clocks_event_reasons.active" is not a valid field to query.', 0.0) is None
    sample = read_sample("3, [N/A], 1755, [Not Supported], 58, [N/A], [N/A], [N/A]\n", 7.5)
    assert sample == (7.5, 3, None, 1755, None, 58, None, None, 0)


def test_error_counters_of_ports_are_read(tmp_path, monkeypatch):
    for counter, value in (
        ("mlx5_0/ports/1/counters/symbol_error", "7"),
        ("mlx5_0/ports/1/counters/port_rcv_data", "99"),
        ("mlx5_1/ports/1/hw_counters/packet_seq_err", "3"),
        ("mlx5_1/ports/1/counters/link_downed", "N/A (no PMA)"),
    ):
        file = tmp_path / counter
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    monkeypatch.setattr(gpu_samples, "INFINIBAND", tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert link_errors() == {"mlx5_0/1 symbol_error": 7, "mlx5_1/1 packet_seq_err": 3}


AFTER_A_FAILURE = """
from pathlib import Path
from types import SimpleNamespace
from trainer import gpu_samples
from trainer.callbacks import GpuSamples

gpu_samples.sampled_steps = lambda run: range(2)
callback = GpuSamples(None, SimpleNamespace(rank=0, local_world_size=1), Path())
callback.on_train_start(None)
sampling = callback.process._process
print("before:", sampling.poll())
callback.on_exception(RuntimeError())
print("after:", sampling.poll())
"""


@pytest.mark.trainer
@pytest.mark.timeout(1500)
def test_a_training_that_fails_ends_its_sampling(warm_trainer, tmp_path):
    (program := tmp_path / "program.py").write_text(AFTER_A_FAILURE, encoding="utf-8")
    ended = warm_trainer.run(str(program), [], folder=tmp_path)
    assert "before: None\nafter: 0\n" in ended.log


@pytest.mark.trainer
@pytest.mark.timeout(1500)
def test_a_training_tells_its_slow_rank_and_its_hot_gpu(warm_trainer, tmp_path):
    """Each is named from the log, and the other ranks do not hide the slow one."""
    sampling = Performance(trainer=TrainerSettings(gpu_samples=True))
    steps = {"max_steps": 8, "window": Window(first=4, last=7)}
    run = planned(4, parallelism=Parallelism(data=4), gbs=8, performance=sampling, **steps)
    trained = warm_trainer.train(run, tmp_path, program=str(ROOT / "tests/trainer/programs/slow_node.py"))
    assert trained.exit_code == 0, trained.log
    log = read_log(tmp_path / "log.out", max_steps=8)

    times = rank_times(log.rank_times)
    assert times is not None
    assert (len(times.seconds), times.steps) == (4, (4, 5, 6, 7))
    (slow,) = times.stragglers
    assert slow.name == f"rank 3 on {times.nodes[0]}"
    assert 1.3 < slow.ratio < 3.5

    samples = parsed(log.gpu_samples)
    assert samples is not None
    [node_samples] = samples.nodes
    assert node_samples.gpus == (0, 1, 2, 3)
    assert node_samples.samples >= 2
    measured, power_w = measure(run, log), 3 * 612.4 + 401.1
    assert measured.gpu_power_mean_w == pytest.approx(power_w / 4)
    tokens = run.recipe.model.seq_length * run.recipe.global_batch_size
    assert measured.joules_per_token == pytest.approx(power_w * measured.step_time_mean_s / tokens)
    assert what_stands_apart(None, samples) == (
        f"node {node_samples.node}: GPU 3 31 °C hotter, GPU 3 clocks down to 1,410 MHz, slowed down by heat "
        "in 100 % of the samples"
    )
