"""Names of the assets that start other DAGs. `sweep/test_sweep_dag_run.py` tests what their events say."""

import pytest

from steptime.airflow.assets import finished_sweep, published_results
from steptime.errors import UserError


def test_assets_are_known_by_what_they_are_of() -> None:
    assert published_results("llama3.1").uri == "x-steptime://results/llama3.1-25.04"
    assert finished_sweep("weekly").name == "steptime_sweep_weekly"
    with pytest.raises(UserError, match="unknown workload 'llama4'"):
        published_results("llama4")
