"""The pools that bound how many GPUs sweeps take at once."""

from pathlib import Path

import pytest

from steptime.airflow.slots.pools import pool_of, pools, slots_for
from steptime.clusters.config import load_cluster
from steptime.errors import UserError


def test_a_pool_has_as_many_slots_as_its_cluster_has_gpus(home: Path) -> None:
    [local], broken = pools()

    assert broken is None
    assert (local.name, local.slots, local.include_deferred) == ("gpus_local", 16, True)
    config = load_cluster("local")
    assert pool_of(config.model_copy(update={"gpus": 3})).slots == 3


def test_a_cluster_that_does_not_say_its_gpus_bounds_nothing(home: Path) -> None:
    from steptime.clusters.config import ClusterConfig

    config = ClusterConfig(name="far", kind="local", gpu_type="h100", work_dir="/scratch")
    assert pool_of(config).slots == -1
    assert slots_for(512, 1024, config, "x") == 1024


def test_what_takes_more_than_the_cluster_has_takes_all_of_it_or_is_refused(home: Path) -> None:
    cluster = load_cluster("local")

    assert slots_for(8, 16, cluster, "x") == 16
    assert slots_for(16, 32, cluster, "x") == 16
    with pytest.raises(UserError, match="x needs 17 GPUs at once and cluster 'local' has 16: ask for fewer"):
        slots_for(17, 17, cluster, "x")
