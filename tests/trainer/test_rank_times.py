"""The time of each rank's forward pass: a slow rank is named from its log, and other ranks do not hide it."""

from pathlib import Path

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.models import Parallelism
from steptime.results.stragglers import rank_times

from .conftest import Train
from .jobs import planned

SLOW_RANK = Path(__file__).parent / "programs" / "slow_rank.py"


@pytest.mark.trainer
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", [4, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_a_slow_rank_is_named(train: Train, tmp_path: Path, ranks: int) -> None:
    run = planned(4, parallelism=Parallelism(data=ranks), max_steps=8)
    trained = train(run, tmp_path, program=str(SLOW_RANK))
    assert trained.exit_code == 0, trained.log
    log = read_log(tmp_path / "log.out")
    found = rank_times(log.rank_times)
    assert found is not None
    assert (len(found.seconds), found.steps) == (ranks, (4, 5, 6, 7))
    (slow,) = found.stragglers
    assert slow.name == f"rank {ranks - 1} on {found.nodes[0]}"
    assert 1.3 < slow.ratio < 2.2, "layers are most of the forward pass"
