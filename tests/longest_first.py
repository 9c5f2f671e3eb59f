"""How `--dist loadfile` deals tests to its workers: files that share something as one, the longest first.

A worker that gets the longest file last would have the others wait for it.
"""

from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

_SHARED = {
    "a process with NeMo": (
        "tests/trainer/test_training.py",
        "tests/trainer/test_families.py",
        "tests/trainer/test_failing_runs.py",
        "tests/trainer/test_few_imports.py",
        "tests/trainer/test_forked_ranks.py",
        "tests/trainer/test_initial_weights.py",
        "tests/trainer/test_mixtures.py",
        "tests/trainer/test_thin_loop.py",
        "tests/trainer/test_rows.py",
        "tests/trainer/test_held_to_upstream.py",
        "tests/trainer/test_on_gpus.py",
        "tests/trainer/test_mamba_reference.py",
    ),
    "an Airflow and its main job": ("tests/end_to_end/",),
    "an Airflow with a stand-in trainer": ("tests/drills/test_drills.py", "tests/drills/test_pool_slots.py"),
    "the first import of Great Expectations and Airflow's tables": (
        "tests/airflow/test_assets.py",
        "tests/airflow/test_budget_dag_run.py",
        "tests/airflow/test_dag_run.py",
        "tests/airflow/test_dags_test_command.py",
        "tests/airflow/test_notes.py",
        "tests/airflow/test_records.py",
        "tests/airflow/test_result_operators.py",
        "tests/airflow/test_runai_dag_run.py",
        "tests/clusters/test_named_runs.py",
        "tests/plug_points/",
        "tests/results/test_quality.py",
    ),
    "a Slurm": (
        "tests/airflow/sweep/test_elsewhere.py",
        "tests/airflow/test_slurm_dag_run.py",
        "tests/cli/test_slurm_command.py",
        "tests/clusters/test_cluster_contract.py",
        "tests/clusters/test_site_on_slurm.py",
        "tests/clusters/test_slurm_",
        "tests/clusters/test_ssh.py",
        "tests/mini_slurm/",
        "tests/staging/test_container.py",
    ),
    "half a year of runs": (
        "tests/judging/test_causes.py",
        "tests/judging/test_compare_command.py",
        "tests/judging/test_drift.py",
        "tests/judging/test_sixty_cells.py",
        "tests/judging/test_trend_command.py",
        "tests/reporting/",
        "tests/web/test_pictures.py",
        "tests/web/test_result_page.py",
        "tests/web/test_scaling.py",
        "tests/web/test_states.py",
        "tests/web/test_trend.py",
        "tests/web/test_week.py",
    ),
    "a PostgreSQL": (
        "tests/results/test_archive.py",
        "tests/results/test_budgets.py",
        "tests/results/test_database.py",
        "tests/results/test_migrations.py",
        "tests/results/test_query_plans.py",
        "tests/results/test_step_files.py",
        "tests/results/test_store",
    ),
}
"""What costs much to start, and the files (or beginnings of their paths) that use it one after the other."""

_LONG = (
    *_SHARED,
    "tests/trainer/test_one_gpu.py",
    "tests/web/test_page_in_airflow.py",
    "tests/staging/test_venv.py",
    "tests/trainer/test_releases.py",
    "tests/clusters/test_golden_scripts.py",
    "tests/clusters/test_ssh_route.py",
    "tests/staging/test_image.py",
    "tests/trainer/test_container.py",
    "tests/judging/test_rates.py",
    "tests/service/test_standalone.py",
    "tests/judging/test_as_if_judged_at_once.py",
    "tests/dags/test_forms.py",
    "tests/staging/test_claim.py",
)
"""The longest first; all others take some seconds each."""


def _unit(path: str) -> str:
    """What a test file is dealt with."""
    return next((name for name, files in _SHARED.items() if path.startswith(files)), path)


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """Deals units in the order of `_LONG`, then by their number of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = min(self.workqueue, key=self._place)
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _place(self, unit: str) -> tuple[int, int]:
        place = _LONG.index(unit) if unit in _LONG else len(_LONG)
        return place, -len(self.workqueue[unit])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, deal so."""
    return LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None
