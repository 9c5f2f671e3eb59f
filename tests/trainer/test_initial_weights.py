"""Initial weights: drawn anew from the distributions that Megatron drew them from."""

import json
import re
from pathlib import Path

import pytest

from .conftest import Train
from .jobs import planned

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

COMPARE = """
import json, sys
from trainer.__main__ import main
if __name__ == "__main__":
    from trainer.cpu.initial_weights import InitialWeights
    def described(module):
        return {
            name: {
                "first": weight.flatten()[0].item(),
                "std": weight.std(correction=0).item(),
                "low": weight.min().item(),
                "high": weight.max().item(),
            }
            for name, weight in module.named_parameters()
        }
    draw = InitialWeights.on_train_start
    def compared(self, trainer, module):
        before = described(module)
        draw(self, trainer, module)
        print("weights", json.dumps([before, described(module)]))
    InitialWeights.on_train_start = compared
    sys.exit(main())
"""


def test_they_are_distributed_as_megatrons(train: Train, tmp_path: Path) -> None:
    """Of the hybrid model, which has every kind of weight."""
    program = tmp_path / "compare.py"
    program.write_text(COMPARE, encoding="utf-8")
    trained = train(planned(workload="nemotron-h", max_steps=1), tmp_path, program=str(program))
    assert trained.exit_code == 0, trained.log
    match = re.search(r"^weights (.*)$", trained.log, flags=re.MULTILINE)
    assert match is not None
    megatrons, ours = json.loads(match[1])
    constant = {name for name, weight in megatrons.items() if weight["std"] == 0}
    assert {"norm" in name or name.endswith(".D") for name in constant} == {True}
    for name, weight in ours.items():
        if name in constant:
            assert weight == megatrons[name], name
            continue
        assert weight["first"] != megatrons[name]["first"], f"{name} was not drawn"
        few = name.endswith(("A_log", "dt_bias"))  # eight numbers each
        assert weight["std"] == pytest.approx(megatrons[name]["std"], rel=1.0 if few else 0.1), name
        for end in ("low", "high"):
            assert weight[end] == pytest.approx(megatrons[name][end], rel=1.0 if few else 0.4), name
