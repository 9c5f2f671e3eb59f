"""Peak throughput per GPU type and dtype (`config/gpus.yaml`), each with the document it comes from."""

from typing import Literal

from pydantic import PositiveFloat, RootModel

from steptime import settings
from steptime.errors import unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import load_yaml_model


class Peak(Frozen):
    """The divisor of an MFU."""

    tflops: float | None
    """Dense TFLOPS of one GPU (one process for `cpu`); None where the run itself measures it."""
    source: str


class GpuType(Frozen):
    """One GPU type of `config/gpus.yaml`."""

    name: str
    source: str
    product: str | None = None
    """A word of the name that nvidia-smi gives it; None where there is no GPU."""
    peak_tflops: dict[str, PositiveFloat | Literal["measured"]]


class _GpuTypes(RootModel[dict[str, GpuType]]):
    pass


def gpu_types() -> dict[str, GpuType]:
    """All GPU types by their short name (`h100`)."""
    return load_yaml_model(settings.config_dir() / "gpus.yaml", _GpuTypes).root


def peak_tflops(gpu_type: str, dtype: str) -> Peak:
    """The peak of one GPU for a dtype. Raises UserError listing the valid types or dtypes."""
    types = gpu_types()
    if gpu_type not in types:
        raise unknown_value("GPU type", gpu_type, types)
    gpu = types[gpu_type]
    if dtype not in gpu.peak_tflops:
        raise unknown_value("dtype", dtype, gpu.peak_tflops, of=gpu_type)
    peak = gpu.peak_tflops[dtype]
    return Peak(tflops=None if peak == "measured" else peak, source=gpu.source)
