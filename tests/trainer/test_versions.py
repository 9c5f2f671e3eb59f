"""The versions that a run records: of its packages, and on GPUs of what is below them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.errors import TrainerError
from trainer.versions import accepted, driver_version, has_option, versions

OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.mark.parametrize(("text", "version"), [(OPEN, "570.86.15"), (CLOSED, "535.104"), ("", None)])
def test_the_driver_tells_its_version(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version").write_text(text)

    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "none") is None


def test_torch_tells_what_it_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    built = SimpleNamespace(cuda="12.8")
    nccl = SimpleNamespace(version=lambda: (2, 27, 3))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=built, cuda=SimpleNamespace(nccl=nccl)))
    assert versions().items() >= {"cuda": "12.8", "nccl": "2.27.3"}.items()

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=built))  # half imported
    assert versions()["cuda"] == "12.8"
    assert "nccl" not in versions()


def test_a_torch_for_cpus_has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda=None)))

    assert set(versions()) - {"nvidia_driver"} == {"nemo", "megatron_core", "torch", "python"}


def test_an_option_that_the_release_has_not_is_refused() -> None:
    def strategy(*, pipeline: int = 1) -> None: ...

    assert has_option(strategy, "pipeline")
    assert accepted(strategy, pipeline=2) == {"pipeline": 2}
    with pytest.raises(TrainerError, match=r"strategy has no 'sharp' in NeMo .* and the plan asks for it"):
        accepted(strategy, pipeline=2, sharp=False)
