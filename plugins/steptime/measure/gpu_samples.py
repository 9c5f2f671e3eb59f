"""Evaluate the samples of a run's GPUs and links: power, energy, and nodes that differ from the others.

`trainer/gpu_samples.py` samples each node and summarizes some steps. A node stands apart if its clocks or
temperatures are outside the spread of the other nodes, or if it shows what no healthy node does: clocks
reduced by heat or by the power supply, new uncorrected ECC errors, Xid errors, or many more link errors.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from steptime.frozen import Frozen
from steptime.measure.stragglers import FEWEST_OTHERS, RankTimes, find_outliers
from steptime.wording import counted

LEAST_SLOWER_CLOCK, LEAST_HOTTER = 0.05, 0.15
"""Least relative difference of a low clock, and of a high temperature (in °C), from those of the others."""
LEAST_SLOWED_PERCENT = 5
"""Least share of samples with reduced clocks, in percent, for which the reason is reported."""
LINK_ERRORS_FACTOR = 10
"""A node has too many link errors if it has more than this many times (1 + the median of the others)."""
_WORDS_OF_REASONS = {
    "hw_power_brake_slowdown": "its power supply",
    "hw_thermal_slowdown": "heat",
    "sw_thermal_slowdown": "heat",
    "hw_slowdown": "its hardware",
}
"""Words for NVML's reasons for reduced clocks, the more specific ones first. `sw_power_cap` is missing: it is
usual under full load."""
_LINK_LOST = "link_downed"

_UnixTime = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Numbers = tuple[_Number | None, ...]


class NodeSamples(Frozen):
    """Power, clocks, temperatures and errors of one node's GPUs during a run, summarized from samples.

    Lists are by GPU, with None for what a GPU does not report.
    """

    node: str
    gpus: tuple[int, ...] = Field(min_length=1)
    """The indexes of the GPUs in nvidia-smi."""
    samples: PositiveInt
    power_w: Numbers
    sm_clock_mhz: Numbers
    least_sm_clock_mhz: Numbers
    clocks_down_since: _UnixTime | None
    """Unix time from which on the slowest GPU's clock stayed below its initial value; None if it did not."""
    memory_clock_mhz: Numbers
    temperature_c: Numbers
    """Highest temperature of each GPU."""
    slowed_percent: dict[str, tuple[_Number, ...]]
    """Share of samples with reduced clocks, by reason (NVML's names)."""
    corrected_ecc_errors: Numbers
    uncorrected_ecc_errors: Numbers
    link_errors: dict[str, int]
    """New errors by link and counter: `mlx5_0/1 symbol_error`, `GPU 3 NVLink 5 crc`."""
    xid_errors: tuple[str, ...] | None
    """Phrases about Xid errors; None if the kernel's log cannot be read."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        lists = (self.power_w, self.sm_clock_mhz, self.least_sm_clock_mhz, self.memory_clock_mhz)
        others = (self.temperature_c, self.corrected_ecc_errors, self.uncorrected_ecc_errors)
        if any(
            len(numbers) != len(self.gpus) for numbers in (*lists, *others, *self.slowed_percent.values())
        ):
            raise ValueError("each list must have one value for each GPU")
        return self

    def errors(self, others: float) -> Iterator[str]:
        """Yield phrases about the node's slowdowns and errors, such as `2 new uncorrected ECC errors`.

        `others` is the median number of link errors on the other nodes.
        """
        for reason, word in _WORDS_OF_REASONS.items():
            if (share := max(self.slowed_percent.get(reason, (0,)))) >= LEAST_SLOWED_PERCENT:
                yield f"slowed down by {word} in {share:.0f} % of the samples"
                break
        if ecc := sum(count or 0 for count in self.uncorrected_ecc_errors):
            yield counted(round(ecc), "new uncorrected ECC error")
        yield from self.xid_errors or ()
        total = sum(self.link_errors.values())
        if total > LINK_ERRORS_FACTOR * (1 + others) or any(_LINK_LOST in name for name in self.link_errors):
            most = max(self.link_errors, key=self.link_errors.__getitem__)
            yield f"{counted(total, 'new link error')} (most: {most})"


class GpuSamples(Frozen):
    """The trainer's record `steptime.gpu_samples`: power, clocks, heat and errors of GPUs on all nodes."""

    first_step: int
    """First global step of the samples: that of the window, or an earlier one if the window is short."""
    last_step: int
    began_at: _UnixTime
    """Unix time on rank 0's node."""
    ended_at: _UnixTime
    nodes: tuple[NodeSamples, ...] = Field(min_length=1)

    @property
    def mean_power_w(self) -> float | None:
        """Mean power per GPU in watts; None if no GPU reports it."""
        known = [power for node in self.nodes for power in node.power_w if power is not None]
        return statistics.fmean(known) if known else None

    @property
    def summary(self) -> str:
        """The mean power and clock, the highest temperature, and the number of GPUs, in a sentence."""
        return _summary(self.nodes)

    def describe_node(self, name: str) -> str | None:
        """Describe the power, clock and temperature of one node's GPUs; None if it was not sampled."""
        samples = [node for node in self.nodes if node.node == name]
        return _summary(samples) if samples else None

    @property
    def clauses(self) -> dict[str, tuple[str, ...]]:
        """Phrases, by node, on its errors and on how it differs from others, such as `31 °C hotter`."""
        phrases = defaultdict[str, list[str]](list)
        for gpu, ratio in self._apart(lambda node: node.temperature_c, LEAST_HOTTER):
            phrases[gpu.node.node].append(f"{gpu.name}{gpu.value * (1 - 1 / ratio):.0f} °C hotter")
        inverse = lambda node: tuple(clock and 1 / clock for clock in node.sm_clock_mhz)  # noqa: E731
        for gpu, _ in self._apart(inverse, LEAST_SLOWER_CLOCK):
            phrases[gpu.node.node].append(f"{gpu.name}clocks down to {gpu.clock}")
        for node in self.nodes:
            others = [sum(other.link_errors.values()) for other in self.nodes if other is not node]
            phrases[node.node] += node.errors(statistics.median(others) if others else 0)
        return {node: tuple(clauses) for node, clauses in phrases.items() if clauses}

    def _apart(
        self, values: Callable[[NodeSamples], Numbers], least: float
    ) -> Iterator[tuple["_Gpu", float]]:
        """Yield the GPUs whose value is above the spread of the others, with its ratio to their mean.

        If there are enough nodes, nodes are compared by the highest value of their GPUs; otherwise all GPUs
        are compared.
        """
        by_node = [
            [_Gpu(node, at, value) for at, value in enumerate(values(node)) if value] for node in self.nodes
        ]
        many = len(self.nodes) > FEWEST_OTHERS
        units = (
            [max(gpus, key=lambda gpu: gpu.value)._replace(name="") for gpus in by_node if gpus]
            if many
            else [gpu._replace(name=f"GPU {gpu.node.gpus[gpu.at]} ") for gpus in by_node for gpu in gpus]
        )
        if not units:
            return
        median = statistics.median(unit.value for unit in units)
        ratios = {str(at): (unit.value / median,) for at, unit in enumerate(units)}
        for at, (ratio, _) in find_outliers(ratios, least).items():
            yield units[int(at)], ratio


class _Gpu(NamedTuple):
    node: NodeSamples
    at: int
    """Index in the node's lists."""
    value: float
    name: str = ""
    """The GPU's name with a trailing blank, to begin a phrase; empty if the GPU stands for its node."""

    @property
    def clock(self) -> str:
        """The GPU's lowest clock, and since when it has been reduced, if that is known."""
        since = self.node.clocks_down_since
        at = "" if since is None else f" since {datetime.fromtimestamp(since, UTC):%H:%M} UTC"
        return f"{self.node.least_sm_clock_mhz[self.at] or 0:,.0f} MHz{at}"


def _summary(nodes: Sequence[NodeSamples]) -> str:
    power, clocks, hottest = (
        [value for node in nodes for value in getattr(node, name) if value is not None]
        for name in ("power_w", "sm_clock_mhz", "temperature_c")
    )
    gpus = sum(len(node.gpus) for node in nodes)
    parts = [
        f"{statistics.fmean(power):.0f} W" if power else "",
        f"{statistics.fmean(clocks):,.0f} MHz" if clocks else "",
        f"at most {max(hottest):.0f} °C" if hottest else "",
    ]
    return f"{', '.join(filter(None, parts))} ({counted(gpus, 'GPU')})"


def gpu_samples(record: Mapping[str, Any] | None) -> GpuSamples | None:
    """Parse the trainer's record of GPU samples; None if there is none, or if it is malformed."""
    try:
        return None if record is None else GpuSamples.model_validate(record)
    except ValidationError:
        return None


def energy(record: Mapping[str, Any] | None, gpus: int, tokens: int, step_time_s: float) -> dict[str, float]:
    """Return the mean GPU power and the energy per step and token, by names of `Measurement`'s fields.

    Empty without samples.

    Args:
        record: the trainer's record of GPU samples.
        gpus: number of the run's GPUs; all are taken to draw the mean power of the sampled ones.
        tokens: tokens per step.
        step_time_s: mean time of the steps in the measurement window.
    """
    samples = gpu_samples(record)
    power_w = None if samples is None else samples.mean_power_w
    if power_w is None:
        return {}
    per_step_j = power_w * gpus * step_time_s
    return {
        "gpu_power_mean_w": power_w,
        "energy_per_step_j": per_step_j,
        "joules_per_token": per_step_j / tokens,
    }


def what_stands_apart(times: RankTimes | None, samples: GpuSamples | None) -> str | None:
    """Describe the nodes and ranks of a run that differ from the others, and how; None if none does."""
    clauses = {} if samples is None else samples.clauses
    said = [
        ", ".join((straggler.words, *(clauses.pop(straggler.node, ()) if straggler.rank is None else ())))
        for straggler in (times.stragglers if times else ())
    ]
    said += [f"node {node}: {', '.join(phrases)}" for node, phrases in clauses.items()]
    return "; ".join(said) or None
