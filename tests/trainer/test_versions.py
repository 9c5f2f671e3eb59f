"""The versions that a run records: of its packages, and on GPUs of the driver and libraries below them."""

import pytest

from trainer import versions
from trainer.ending import sentence
from trainer.errors import TrainerError
from trainer.versions import accepted, driver_version, has_option

OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.mark.parametrize(("text", "version"), [(OPEN, "570.86.15"), (CLOSED, "535.104"), ("", None)])
def test_the_driver_tells_its_version(tmp_path, text, version):
    (tmp_path / "version").write_text(text)

    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("nemo", "supported"),
    [("2.1.9", False), ("2.2.0", True), ("2.7.3", True), ("2.8.0", False), ("3.2.0", False), ("dev", False)],
)
def test_the_oldest_and_the_newest_nemo_are_supported(nemo, supported, monkeypatch):
    monkeypatch.setattr(versions, "_version", lambda package: nemo if "nemo" in package else "0.15.3")
    if supported:
        versions.check_versions("nemo")
    else:
        with pytest.raises(TrainerError, match=f"NeMo {nemo} is installed here, but .* 2.2 to 2.7: choose"):
            versions.check_versions("nemo")


def test_an_option_that_the_release_has_not_is_refused():
    def strategy(*, pipeline=1): ...

    assert has_option(strategy, "pipeline")
    assert accepted(strategy, pipeline=2) == {"pipeline": 2}
    with pytest.raises(TrainerError, match=r"strategy has no 'sharp' in NeMo .* but the plan sets it"):
        accepted(strategy, pipeline=2, sharp=False)


@pytest.mark.parametrize(
    ("bridge", "core", "remark"),
    [
        ("0.3.1", "0.16.1", False),
        ("0.6.2", "0.19.2", False),
        ("0.3.1", "0.19.2", True),
        ("0.6.2", "0.16.1", True),
        ("0.4.0", "0.17.0", True),
    ],
)
def test_each_pair_of_versions_that_trained_is_known(bridge, core, remark, monkeypatch):
    monkeypatch.setattr(versions, "_version", {"megatron-bridge": bridge, "megatron-core": core}.get)
    there = (
        f"Megatron-Bridge {bridge} with Megatron-Core {core} is installed, and this trainer was tried with "
    )
    said = there + "0.3.1 and 0.16.1 or 0.6.2 and 0.19.2 only" if remark else None
    assert versions.untried("megatron_bridge") == said
    for error in (ImportError("no"), AttributeError("no"), TypeError("no"), ValueError("no")):
        hint = f"; {said}: choose another image if their API differs."
        expected = hint if remark and not isinstance(error, ValueError) else ""
        assert sentence(error, 3, 99, "megatron_bridge") == f"rank 3 failed: no{expected}"
