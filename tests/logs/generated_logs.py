"""Makes logs up by seed: ranks and labels, restarts, NaN, failures, cut and damaged lines, in any format."""

import random
from collections.abc import Callable

_Line = Callable[[random.Random, int, int], str]
"""Makes the line of a step (from 0) of a run with so many steps."""

_LABELS = ("", "", "{rank}: ", "{rank}: ", "[rank{rank}]: ", "[default{rank}]:", "pod-7/{rank} ")
_BESIDES = (
    b"pool0-0001:2001:2701 [1] NCCL INFO AllReduce: opCount 7 count 99 datatype 9 [nranks=64]\n",
    b"srun: error: n1: task 3: Killed\n",
    b"Traceback (most recent call last):\nValueError: no\n",
    b"Global Checkpoint Save : Rank: 0 : Iteration: 19 : Start time: 1770091506.250s : Save duration: 2.5s\n",
    b"Global Checkpoint Load : Rank : 0 : Start time : 17.2s : Time spent in load_checkpoint: 9.7s\n",
    b"saving checkpoint at iteration 20 to /x/saved in torch_dist format\n",
    b'steptime.start {"world_size": 2}\n',
    b'steptime.result {"state": "completed"}\n',
    b"Training epoch 0, iteration ",
    b"\x00\xff\xfe \xe2\x96\n",
    b"\n",
)


def generated_log(seed: int) -> bytes:
    """A log of at most some hundred steps; a seed gives the same one always."""
    order = random.Random(seed)  # noqa: S311 - it is to be the same every time
    formats = [_nemo2(order), _megatron(order), _torchtitan(order), _tqdm(order)]
    make = order.choices(formats, weights=(4, 3, 3, 1))[0]
    label, prefix = order.choice(_LABELS), order.choice(("", "", "", "[2026-02-03 04:05:06] "))
    ranks, last = order.randint(1, 8), order.randint(1, 120)
    damaged, besides, other = (order.choice((0.0, 0.0, 0.01, 0.1)) for _ in range(3))
    text: list[bytes] = []
    first = order.choice((0, 0, 0, min(3, last)))
    for _ in range(order.choice((1, 1, 2, 4))):
        reached = order.randint(first, last)
        for step in range(first, reached + 1):
            for rank in order.sample(range(ranks), order.choice((ranks, ranks, order.randint(1, ranks)))):
                one = order.choice(formats) if order.random() < other / 5 else make
                head = prefix + label.format(rank=rank)
                lines = one(order, step, last).splitlines(keepends=True)
                line = "".join(head + line for line in lines).encode()
                text.append(_damaged(line, order) if order.random() < damaged else line)
                if order.random() < besides / 3:
                    text.append(order.choice(_BESIDES))
        first = min(last, max(0, reached + order.choice((-30, -5, -2, -1, 0, 1, 1))))
    log = b"".join(text)
    if order.random() < 0.2:
        log = log.replace(b"\n", b"\r\n")
    return log[: order.randint(0, len(log))] if order.random() < 0.3 else log


def _damaged(line: bytes, order: random.Random) -> bytes:
    at = order.randrange(len(line))
    return order.choice(
        (
            line[:at] + bytes([order.randrange(256)]) + line[at + 1 :],
            line[:at],
            line[at:],
            line.rstrip(b"\n"),
            line[:at] + b"\xff\xfe" + line[at:],
            line[:at] + b"\x1b[31m" + line[at:],
            line[:at] + order.choice((b"7", b"-", b"e9", b" ", b"9" * 30, b"1e99", b"\r", b"ValueError: x"))
            + line[at:],
        )
    )  # fmt: skip


def _number(order: random.Random, low: float = 0.0, high: float = 13.0) -> str:
    if order.random() < 0.005:
        return order.choice(("nan", "NaN", "inf", "-inf", "nan.0", "", "-", "1e400"))
    form = order.choice(("{:.4g}", "{:.4g}", "{:.4g}", "{:.3e}", "{:.0f}"))
    return form.format(order.uniform(low, high))


def _nemo2(order: random.Random) -> _Line:
    short = order.random() < 0.5
    total = order.random() < 0.8
    memory = order.choice(("peak_memory_usage", "max_memory_allocated"))
    rate = order.choice(("", " | TFLOPS_per_GPU: {}", " | tflops_per_sec_per_gpu: {}"))

    def line(order: random.Random, step: int, last: int) -> str:
        lacks_some = short and step == 0
        return (
            f"Training epoch {step // 100}, iteration {step % 100}{f'/{last}' if total else ''} | "
            f"lr: {_number(order, 0, 1e-4)} | global_batch_size: 256 | global_step: {step} | "
            f"{memory}: {order.choice((72972500992, 7.2e10))} | "
            f"reduced_train_loss: {_number(order)} | train_step_timing in s: {_number(order)}"
            + ("" if lacks_some else f" | consumed_samples: {(step + 1) * 256}")
            + rate.format(_number(order))
            + order.choice(("", "", "", " | grad_norm: " + _number(order)))
            + "\n"
        )

    return line


def _megatron(order: random.Random) -> _Line:
    utilization = order.random() < 0.7
    throughput = order.random() < 0.3

    def line(order: random.Random, step: int, last: int) -> str:
        nan = order.random() < 0.01
        return (
            (f"Step Time : 9.09s GPU utilization: {_number(order)}MODEL_TFLOP/s/GPU\n" if utilization else "")
            + f" [2025-12-19 10:49:{step % 60:02}] iteration {step + 1:8d}/{last + 1:8d} | "
            f"consumed samples: {step * 512:12d} | elapsed time per iteration (ms): "
            f"{order.uniform(1, 9999):.1f} | "
            + (f"throughput per GPU (TFLOP/s/GPU): {_number(order)} | " if throughput else "")
            + "learning rate: 3.000000E-04 | global batch size:   512 | "
            + ("" if nan else f"lm loss: {order.random():.6E} | ")
            + f"loss scale: 1.0 | grad norm: {_number(order)} | "
            f"number of skipped iterations:   0 | number of nan iterations:   {nan:d} |\n"
        )

    return line


def _torchtitan(order: random.Random) -> _Line:
    colours = ("\x1b[31m", "\x1b[32m", "\x1b[38;2;180;60;0m") if order.random() < 0.6 else ("", "", "")

    def line(order: random.Random, step: int, _: int) -> str:
        return (
            f"[titan] 2026-05-18 16:04:46,338 - root - INFO - {colours[0]}step: {step + 1:2}  "
            f"{colours[1]}loss:  {_number(order)}  {colours[2]}grad_norm:  {_number(order)}  "
            f"memory:  {order.uniform(1, 80):.2f}GiB(64.99%)  tps: {order.randrange(20_000):,}  "
            f"tflops: {_number(order)}  mfu: 0.17%\n"
        )

    return line


def _tqdm(_: random.Random) -> _Line:
    def line(order: random.Random, step: int, last: int) -> str:
        return (
            f"\rEpoch 0: : {100 * step // (last + 1):3d}%|████▌| {step + 1}/{last + 1} [07:57<00:00, v_num=, "
            f"reduced_train_loss={_number(order)}, global_step={step:.2f}, "
            f"train_step_timing in s={_number(order)}]" + order.choice(("", "\n"))
        )

    return line
