"""`steptime metrics` as people and programs call it."""

import json
import re

import pytest
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import UserError

LLAMA_8B = ["--workload", "llama3.1", "--size", "8b", "--dtype", "bf16", "--gpu-type", "h100", "--gpus", "8"]


def test_the_formula_is_the_default_and_named():
    given, printed = (_metrics([*LLAMA_8B, "--step-time=12.27", *by]) for by in ([], ["--as-published"]))
    assert f"{given['mfu_percent']:.2f}" == "62.50"
    assert f"{printed['mfu_percent']:.2f}" == "62.47", "with the constants behind the document's table"
    assert (given["published_step_time_s"], given["step_time_over_published"]) == (12.27, 1.0)
    assert given["published_mfu_percent"] == 62.47
    assert (given["flops_formula"], given["peak_tflops_per_gpu"]) == ("llama3.1-25.04", 989)


def test_another_batch_and_peak():
    given = _metrics([*LLAMA_8B, "--step-time=12.27", "--gbs=256", "--peak-tflops=1978"])
    assert given["global_batch_size"] == 256
    assert f"{given['mfu_percent']:.2f}" == "62.50"
    assert given["peak_source"] == "given with --peak-tflops"
    assert given["published_step_time_s"] is None  # nothing is published at this batch size


def test_a_cpu_size_has_no_mfu_without_its_run():
    cell = "--workload llama3.1 --size tiny --dtype fp32 --gpu-type cpu --gpus 2"
    tiny = [*cell.split(), "--step-time=0.1"]
    assert _metrics(tiny)["mfu_percent"] is None
    assert _metrics([*tiny, "--peak-tflops=0.2"])["mfu_percent"] == pytest.approx(84.557, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--step-time=nan"], "a step time of nan s is impossible"),
        (["--gbs=7"], "--gbs 7: global batch size 7 is not a multiple of"),
    ],
)
def test_a_wrong_value_is_one_sentence(arguments, sentence):
    result = CliRunner().invoke(app, ["metrics", *LLAMA_8B, "--step-time=12.27", *arguments])
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)


def test_the_command_itself_prints_a_table():
    shown = _stdout(["metrics", *LLAMA_8B, "--step-time=13.497", "--wide"])
    lines = [re.split(" {2,}", line) for line in shown.splitlines()]
    assert ["tokens/s", "77,690", "85,459", "sequence 8192 × global batch 128 / step time"] in lines
    assert ["step time", "13.497 s", "12.27 s", "10.0 % slower than published"] in lines
    assert "formula llama3.1-25.04; peak 989 TFLOPS (nemotron4-340b-25.12, table of peak" in shown


def test_csv_has_the_numbers_of_json():
    header, row = _stdout(["metrics", *LLAMA_8B, "--step-time=13", "--format=csv"]).splitlines()
    assert header.split(",") == list(_metrics([*LLAMA_8B, "--step-time=13"]))
    assert row.startswith("llama3.1-25.04,8b,")


def _metrics(arguments):
    given = json.loads(_stdout(["metrics", *arguments, "--format=json"]))["metrics"]
    assert isinstance(given, dict)
    return given


def _stdout(arguments):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout
