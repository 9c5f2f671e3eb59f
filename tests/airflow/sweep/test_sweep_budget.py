"""A sweep counts against its cluster's budget as a whole, and its cells are not counted again."""

import pytest
from airflow.sdk.exceptions import AirflowFailException
from stored import as_planned

from steptime.airflow.base import Refused
from steptime.airflow.installation import this_installation
from steptime.store.budgets import BudgetExceeded, Owner, budget_balances, store_plan
from tests.airflow.conftest import logged

from .conftest import SweepTask

pytestmark = pytest.mark.long

ASKED = (1 + 2) * 600 / 3600
"""GPU-hours of the sweep's two cells, of one and of two ranks."""


def committed():
    [balance] = budget_balances(["local"])
    return balance.committed_gpu_hours


def test_a_sweep_is_committed_whole_and_its_cells_take_over_their_parts(
    check,
    task,
    budget,
    make_context,
    staged,
    planned,
):
    path = budget(0.9 * ASKED)
    with pytest.raises(Refused, match=r"this plan may take 0\.50") as refusal:
        check()
    assert f"raise gpu_hours_per_month in {path}" in str(refusal.value)
    assert committed() == 0

    budget(1.1 * ASKED)
    found = []
    said = logged(lambda: found.append(check()))
    [checked] = found
    assert [line for line in said if line.startswith("budget: ") and "this plan at most 0.50" in line]
    assert committed() == pytest.approx(ASKED)
    with pytest.raises(BudgetExceeded):  # no other plan can take the sweep's reservation before its cells do
        store_plan(
            Owner(this_installation().id, "steptime_llama3.1-25.04", "b"),
            [as_planned(planned(gpus="2").runs[0])],
        )

    json = {"run": checked["cells"][1]["label"], "staged": staged.model_dump(mode="json")}
    submit = task("performance.submit", **json)
    submit.execute(make_context() | {"ti": SweepTask(task_id="performance.submit", map_index=0)})
    assert committed() == pytest.approx(ASKED), "not counted twice"

    with pytest.raises(AirflowFailException, match="have no valid result"):
        task("report", checked=checked, confirmed=None).execute(_context())
    assert committed() == pytest.approx(2 * 600 / 3600), "what has not begun is given back"


def _context():
    return {"ti": SweepTask(task_id="report", map_index=-1)}
