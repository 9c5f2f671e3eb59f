"""Logs in the forms that frameworks print, for tests that need many of them."""

from steptime.logs.reader import LogBuilder


def nemo2(step, *, last=49, time="2.693", loss="12.81", prefix="", tail=""):
    """Return a line of NeMo 2 as in the 25.04 recipe documents."""
    return (
        f"{prefix}Training epoch 0, iteration {step}/{last} | lr: 4.491e-06 | global_batch_size: 256 | "
        f"global_step: {step} | peak_memory_usage: 72972500992 | memory_allocated: 34466545664 | "
        f"reduced_train_loss: {loss} | train_step_timing in s: {time} | "
        f"consumed_samples: {(step + 1) * 256}{tail}\n"
    )


def nemo2_log(steps=range(50), *, last=49, prefix=""):
    """Return a log of NeMo 2 lines with a different time each: `2.600`, `2.601`, …"""
    lines = [nemo2(step, last=last, time=f"2.6{step:02}", prefix=prefix) for step in steps]
    return "".join(lines).encode()


def tqdm(step, *, total=100, printed_step=None, time="3.590"):
    """Return the progress bar of the 24.11 recipe, drawn over the one before."""
    done = step + 1
    return (
        f"\rEpoch 0: : {100 * done // total:3d}%|████▌| {done}/{total} [07:57<00:00, v_num=, "
        f"reduced_train_loss=7.310, global_step={printed_step or f'{step:.2f}'}, "
        f"consumed_samples={done * 256.0}, train_step_timing in s={time}]"
    )


def megatron_bridge(iteration, *, total=50, elapsed_ms="9090.1", grad_norm="0.7"):
    """Return the two lines that Megatron-Bridge prints for a step."""
    return (
        f"Step Time : 9.09s GPU utilization: {600 + iteration}.5MODEL_TFLOP/s/GPU\n"
        f" [2025-12-19 10:49:15] iteration {iteration:8d}/{total:8d} | "
        f"consumed samples: {iteration * 512:12d} | "
        f"elapsed time per iteration (ms): {elapsed_ms} | learning rate: 3.000000E-04 | "
        f"global batch size:   512 | lm loss: 4.474437E+00 | loss scale: 1.0 | grad norm: {grad_norm} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def torchtitan(step, *, rank=0, loss="3.24405"):
    """Return a line of torchtitan with its colours."""
    return (
        f"[rank{rank}]:[titan] 2026-05-18 16:04:46,338 - root - INFO - \x1b[31mstep: {step:2}  "
        f"\x1b[32mloss:  {loss}  \x1b[38;2;180;60;0mgrad_norm:  0.8319  \x1b[36mmemory:  9.46GiB(64.99%)  "
        "\x1b[34mtps: 7,282  \x1b[36mtflops: 0.52  \x1b[35mmfu: 0.17%\x1b[39m\n"
    )


def nccl_trace(line):
    """Return a line of NCCL's tracing, of which a log with tracing consists almost entirely."""
    return (
        f"pool0-{line % 64:04}:{2000 + line % 8}:{2700 + line % 8} [{line % 8}] NCCL INFO AllReduce: opCount "
        f"{line:x} sendbuff 0x7f{line * 4096:010x} recvbuff 0x7f{line * 8192:010x} "
        f"count {line % 99991} datatype 9 op 0 root 0 comm 0x55d0c0ffee{line % 8:02x} [nranks=64] "
        f"stream 0x55d0deadbe{line % 8:02x}\n"
    ).encode()


def read_chunks(
    chunks,
    *,
    max_steps=None,
    first_step=0,
    step_line=None,
):
    """Read the log of one run from pieces of any size, as `read_log` reads it from its file."""
    builder = LogBuilder(step_line)
    builder.read("<stream>", chunks)
    return builder.result(max_steps=max_steps, first_step=first_step)
