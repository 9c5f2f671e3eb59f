"""Peak throughput per GPU type and dtype (`config/gpus.yaml`), each with the document it comes from.

A broken entry does not affect the others: it is refused when it is used.
"""

from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from steptime import settings
from steptime.errors import BrokenFiles, unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import Document, broken_entries, load_entry, read_entries


class Peak(Frozen):
    """A GPU's peak FLOP rate: the denominator of the model FLOPs utilization (MFU)."""

    tflops: float | None
    """Dense TFLOPS of one GPU (one process for `cpu`); None if no document states it."""
    source: str


class GpuType(Frozen):
    """One GPU type of `config/gpus.yaml`."""

    name: str
    source: str
    product: str | None = None
    """A word in the GPU's name in nvidia-smi; None if it is not known, or there is no GPU."""
    nvlink_domain_gpus: PositiveInt | None = None
    """Number of GPUs that NVLink connects across nodes; None if it ends at the node."""
    memory_gb: PositiveFloat | None = None
    """Memory of one GPU in 10⁹ bytes, by its data sheet; None if unknown, so that no memory is estimated."""
    peak_tflops: dict[str, PositiveFloat | None]
    """Dense peak in TFLOPS by dtype; None if no document states it, so that runs have no MFU."""

    def find_peak(self, dtype: str) -> Peak | None:
        """Return the peak for a dtype; None if this GPU type does not list the dtype.

        `fp8_cs` and `fp8_ss` have the peak of `fp8`. MXFP8 (`fp8_mx`) needs a GPU that lists it.
        """
        if dtype in ("fp8_cs", "fp8_ss") and dtype not in self.peak_tflops:
            dtype = "fp8"
        if dtype not in self.peak_tflops:
            return None
        return Peak(tflops=self.peak_tflops[dtype], source=self.source)


def gpus_file() -> Path:
    """Return the path of the file that describes the GPU types."""
    return settings.config_file("gpus.yaml")


def gpu_types() -> dict[str, GpuType | None]:
    """Return all GPU types by short name (`h100`), with None for a broken entry.

    Raises UserError if the file as a whole cannot be read.
    """
    document = _document()
    return {name: document.fit(GpuType, name)[0] for name in document.content}


def load_gpu_type(name: str) -> GpuType:
    """Load the GPU type of that name. Raises UserError if it is unknown or its entry is broken."""
    return load_entry(_document(), GpuType, name, "GPU type")


def broken_gpu_types() -> BrokenFiles | None:
    """Return all mistakes in the file of the GPU types; None if there are none."""
    return broken_entries(_document, GpuType)


def peak_tflops(gpu_type: str, dtype: str) -> Peak:
    """Return the peak of one GPU for a dtype. Raises UserError listing the valid types or dtypes."""
    gpu = load_gpu_type(gpu_type)
    peak = gpu.find_peak(dtype)
    if peak is None:
        raise unknown_value("dtype", dtype, gpu.peak_tflops, of=gpu_type)
    return peak


def _document() -> Document:
    return read_entries(gpus_file(), "names no GPU types, as in h100: {name: …}")
