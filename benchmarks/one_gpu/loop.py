"""The training loop for one device: it runs a planned run and logs steps in the form of NeMo's lines."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from one_gpu import gpu_state
from one_gpu.batches import batch_of_step
from one_gpu.model import Model, build_model
from one_gpu.weights import MainWeights
from trainer import devices, records
from trainer.cpu.peak import MeasuredPeak, measure_peak
from trainer.ending import Ending
from trainer.errors import TrainerError, check_loss
from trainer.hyperparameters import learning_rate
from trainer.records import write_step
from trainer.run import TFLOPS_FIELD, TRACE_FOLDER, WALL_TIME_FIELD
from trainer.spec import PlannedRun

ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Attention kernels of torch, the fastest on Hopper first; torch skips those that cannot be used."""
TOP_KERNELS = 15
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Variable with the folder in which torch.compile keeps compiled code."""


@dataclass(frozen=True)
class Options:
    """Options of the loop that are not in the plan."""

    output: Path
    """The job's folder; profiles are written below it."""
    history: Path | None = None
    """File for the loss and time of every step, in full precision."""
    threads: int = 1
    """Number of CPU threads."""
    compile_mode: str | None = None
    """Mode of torch.compile; `off` to compile nothing, None for the plan's choice for this device."""


def train(run: PlannedRun, options: Options, ending: Ending) -> None:
    """Train the planned steps on one device.

    Raises:
        TrainerError: this machine lacks what the plan asks for.
        TrainingFailure: the training diverged.
    """
    device = devices.training_device(run.recipe.gpu_type)
    compile_mode = options.compile_mode or _usual_mode(run, device)
    if device == "cpu":
        torch.set_num_threads(options.threads)
    with contextlib.ExitStack() as around:
        if compile_mode != "off":
            around.enter_context(own_compile_cache())
        model = _model(run, device, compile_mode)
        _record_start(run, model, device, ending)
        around.enter_context(sdpa_kernel(ATTENTION, set_priority=True))
        if device == "cuda":
            around.enter_context(gpu_state.recorded())
        history = around.enter_context(options.history.open("w")) if options.history else None
        profiler = _profiler(run, device, options.output)
        if profiler:
            around.enter_context(profiler)
        for step, loss, duration_s in steps(run, model, MainWeights(model)):
            ending.progress.step_ended(step)
            wall_time_s = ending.progress.wall_time_s
            line = step_line(
                run,
                step,
                loss=loss,
                duration_s=duration_s,
                wall_time_s=wall_time_s,
                memory_bytes=devices.peak_memory_bytes(device),
            )
            print(line, flush=True)
            if history:
                write_step(
                    history,
                    step,
                    loss=loss,
                    learning_rate=learning_rate(run, step),
                    step_time_s=duration_s,
                    wall_time_s=wall_time_s,
                )
            check_loss(step, loss)
            if profiler:
                profiler.step()
    ending.progress.highest_memory_bytes = devices.peak_memory_bytes(device)


def _model(run: PlannedRun, device: str, compile_mode: str) -> Model:
    model = build_model(run.recipe.model, run.seed, device, half=run.recipe.dtype != "fp32")
    if run.recipe.dtype == "fp8":
        _compute_in_fp8(model, emulated=device == "cpu")
    if compile_mode != "off":
        model.compile_parts(compile_mode)
    return model


def _usual_mode(run: PlannedRun, device: str) -> str:
    if device == "cpu":
        return "off"
    return "reduce-overhead" if run.settings.cuda_graphs else "default"


@contextlib.contextmanager
def own_compile_cache() -> Iterator[None]:
    """A cache for torch.compile that no other run has used: what a killed one leaves breaks the next.

    A folder that the environment names is kept.
    """
    if CACHE_VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="steptime-compile-") as folder:
        os.environ[CACHE_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[CACHE_VARIABLE]


def _compute_in_fp8(model: Model, *, emulated: bool) -> None:
    """Let torchao compute the layers' matrix products in FP8; emulated FP8 only rounds to it."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ModuleNotFoundError:
        raise TrainerError("the thin loop computes fp8 by torchao, which is not installed here.") from None
    convert_to_float8_training(model.decoder, config=Float8LinearConfig(emulate=emulated))


def _record_start(run: PlannedRun, model: Model, device: str, ending: Ending) -> None:
    progress = ending.progress
    progress.node_names = [records.own_node_name()]
    progress.own_peak_memory = partial(devices.peak_memory_bytes, device)
    started = records.started(
        run,
        run.recipe.parallelism,
        device,
        node_names=progress.node_names,
        numa_bound_ranks=int(records.bound_to_numa_node()),
        peak=_peak() if device == "cpu" else None,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loop="thin",
    )
    records.emit("start", started)
    progress.moved_at = progress.training_began_at = time.perf_counter()


def _peak() -> MeasuredPeak:
    """Return the measured peak of the CPU; the measurement allows several ranks, here there is one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        return measure_peak()
    finally:
        torch.distributed.destroy_process_group()


def _profiler(run: PlannedRun, device: str, output: Path) -> torch.profiler.profile | None:
    """Return torch's profiler for the planned steps; at their end it logs the slowest kernels."""
    window = run.profile
    if window is None:
        return None
    path = output / TRACE_FOLDER / "rank0.json.gz"

    def log_kernels(profiler: torch.profiler.profile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        by = f"self_{device}_time_total"
        print(profiler.key_averages().table(sort_by=by, row_limit=TOP_KERNELS), flush=True)
        print(f"profile of rank 0: {path}", flush=True)

    warm_up = min(1, window.first_step)
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(
            wait=window.first_step - warm_up,
            warmup=warm_up,
            active=min(window.last_step, run.max_steps - 1) - window.first_step + 1,
            repeat=1,
        ),
        on_trace_ready=log_kernels,
    )


def steps(run: PlannedRun, model: Model, weights: MainWeights) -> Iterator[tuple[int, float, float]]:
    """Train; yield each global step's number, mean loss, and seconds until the device had finished."""
    batch = batch_of_step(run, 0, weights.device)
    for step in range(run.max_steps):
        began_at = time.perf_counter()
        loss = _backward(model, *batch)
        weights.step(learning_rate(run, step))
        batch = batch_of_step(run, step + 1, weights.device)  # while a GPU is still at this one
        yield step, float(loss), time.perf_counter() - began_at


def _backward(model: Model, tokens: Tensor, labels: Tensor) -> Tensor:
    """Add up the gradients over a step's micro batches, and return their mean loss."""
    losses = []
    for micro_batch in zip(tokens, labels, strict=True):
        loss = model(*micro_batch) / len(tokens)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def step_line(
    run: PlannedRun,
    step: int,
    *,
    loss: float,
    duration_s: float,
    wall_time_s: float | None,
    memory_bytes: int,
) -> str:
    """Return a step in the form of NeMo's lines."""
    recipe = run.recipe
    tflops = run.tflops_per_gpu(duration_s)
    fields = {
        "lr": f"{learning_rate(run, step):.4g}",
        "global_batch_size": recipe.global_batch_size,
        "global_step": step,
        "max_memory_allocated": memory_bytes,
        "reduced_train_loss": f"{loss:.4g}",
        "train_step_timing in s": f"{duration_s:.4g}",
        **({} if tflops is None else {TFLOPS_FIELD: f"{tflops:.4g}"}),
        "consumed_samples": (step + 1) * recipe.global_batch_size,
        **({} if wall_time_s is None else {WALL_TIME_FIELD: f"{wall_time_s:.4g}"}),
    }
    logged = " | ".join(f"{name}: {value}" for name, value in fields.items())
    return f"Training epoch 0, iteration {step}/{run.max_steps - 1} | {logged}"
