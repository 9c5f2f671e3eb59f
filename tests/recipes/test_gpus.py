"""Peaks per GPU type and dtype."""

import pytest

from steptime.errors import UserError
from steptime.recipes.cluster_files import read_cluster_file
from steptime.recipes.gpus import broken_gpu_types, gpu_types, peak_tflops


@pytest.mark.parametrize(("gpu_type", "dtype"), [("cpu", "fp32"), ("vr200", "bf16"), ("vr200", "nvfp4")])
def test_what_no_document_states_is_no_peak(gpu_type, dtype):
    peak = peak_tflops(gpu_type, dtype)
    assert peak.tflops is None
    assert "no MFU" in peak.source


@pytest.mark.parametrize(
    ("gpu_type", "dtype", "sentence"),
    [
        (
            "h1000",
            "bf16",
            "unknown GPU type 'h1000': did you mean 'h100'? Valid are: a100, h100, h200, gh200, b200",
        ),
        ("h100", "fp88", "unknown dtype 'fp88' of h100: did you mean 'fp8'? Valid are: bf16, fp8."),
    ],
)
def test_what_is_not_there_is_named_with_what_is(gpu_type, dtype, sentence):
    with pytest.raises(UserError) as error:
        peak_tflops(gpu_type, dtype)
    assert sentence in str(error.value)


BROKEN = {
    # the file, and all that is wrong with it
    "h100: {name: H100, source: x, peak_tflops: {bf16: 989}}\n": None,
    "h100: {name: H100, source: x, peak_tflops: {bf16: null}}\n": None,
    "h100: {name: 5, source: x, peak_tflops: {}}\nb200: {source: x, peak_tflops: {}}\n": [
        "line 1, h100.name: has to be text, not 5 (put it in quotes).",
        "line 2, b200.name: is missing.",
    ],
    "- h100\n": ["line 1, top level: names no GPU types, as in h100: {name: …}."],
    "h100: {name: a, source: x, peak_tflops: {}}\nh100: {}\n": ["line 2, h100: is given twice; keep one."],
    "": ["is empty."],
}


def test_all_that_is_wrong_with_the_file_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    path = tmp_path / "gpus.yaml"
    for text, expected in BROKEN.items():
        path.write_text(text)
        broken = broken_gpu_types()
        told = broken and [sentence.removeprefix(str(path)).lstrip(",: ") for sentence in broken.sentences]
        assert told == expected, text
    path.unlink()
    assert "gb300" in gpu_types(), "the shipped file, as none stands over it"


def test_a_cluster_whose_gpu_type_is_described_wrongly_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    (tmp_path / "gpus.yaml").write_text("mine: {source: x, peak_tflops: {}}\n")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "site.yaml").write_text("name: site\nkind: local\ngpu_type: mine\n")
    with pytest.raises(UserError, match=r"mine\.name: is missing"):
        read_cluster_file("site")
