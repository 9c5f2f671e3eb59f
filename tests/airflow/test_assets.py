"""Names of the assets that start other DAGs. `sweep/test_sweep_dag_run.py` tests what their events say."""

import pytest

from steptime.airflow.assets import finished_sweep, published_results
from steptime.errors import UserError


def test_assets_are_known_by_what_they_are_of():
    results, sweep = published_results("llama3.1"), finished_sweep("weekly")
    assert (results.name, results.uri, results.group) == (
        "steptime_results_llama3.1-25.04",
        "x-steptime://results/llama3.1-25.04",
        "steptime",
    )
    assert (sweep.name, sweep.uri, sweep.group) == (
        "steptime_sweep_weekly",
        "x-steptime://sweeps/weekly",
        "steptime",
    )
    with pytest.raises(UserError, match="unknown workload 'llama4'"):
        published_results("llama4")
