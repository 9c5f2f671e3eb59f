"""Build the DAG that benchmarks a workload; all workloads have the same tasks.

    check_params ─▶ stage ──────────┬─▶ performance [per run]  submit ─▶ wait ─▶ parse ─▶ validate ─▶ publish
                 ├▶ performance_runs┤
                 └▶ checkpoint_pairs┴─▶ checkpoint [per pair] save: as above; load: the same after save.wait

Each run also has a teardown task, `end`, which ends jobs that no task waits for. `end` has no setup
task, because clearing a task would clear its setup too, for all runs. Clearing `submit` starts a new job,
clearing `wait` waits again for the same job. `check_params` is a setup task. Its teardown, `report`, prints
all results and decides the state of the DAG run.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from airflow.sdk import DAG, Asset, BaseOperator, Context, TaskGroup, TriggerRule, task_group
from airflow.sdk.definitions.param import ParamsDict

from steptime.airflow.assets import published_results
from steptime.airflow.operators import (
    CheckParamsOperator,
    EndTrainingOperator,
    StageTrainingOperator,
    SubmitTrainingOperator,
)
from steptime.airflow.params import dag_params
from steptime.airflow.result_operators import (
    PublishOperator,
    ReadLogOperator,
    ReportOperator,
    ValidateOperator,
    record_failure,
)
from steptime.airflow.sensors import TrainingSensor
from steptime.airflow.versions import conf
from steptime.airflow.xcom import returned_by
from steptime.recipes.workload_file import Configuration, Workload
from steptime.recipes.workloads import load_workload

RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=10)}
"""Retries for faults of the infrastructure; failed trainings and the user's errors are never retried."""

_WAITING_RETRIES = 100
"""Retries of tasks that wait for long: each lost worker uses one up, and a training of weeks must survive
many."""

_RUNS_AT_ONCE = 200
"""Maximum number of active runs of one DAG: the cluster's queue, not Airflow, decides what trains at once."""


class SelectOperator(BaseOperator):
    """Returns one field of another task's return value.

    It is needed because Airflow can map only over a task's whole return value. A function with `@task` could
    do the same, but importing that decorator would take a third of the time allowed for reading a DAG file.

    :param returned: what the other task returned. (templated)
    :param field: the name of the field; an empty list is returned if there is none.
    """

    template_fields: Sequence[str] = ("returned",)
    ui_color: str = "#eeeeee"

    def __init__(self, *, returned: Any, field: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.returned = returned
        self.field = field

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Return the field of the other task's return value."""
        returned = returned_by(", ".join(sorted(self.upstream_task_ids)), self.returned)
        return returned.get(self.field, [])


def training_dag(
    dag_id: str,
    *,
    workload: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    schedule: Any = None,
    default_args: Mapping[str, Any] = MappingProxyType({}),
    tags: Collection[str] = (),
    **dag_arguments: Any,
) -> DAG:
    """Build the DAG that benchmarks a workload, with its trigger form.

    Your own DAG file needs three lines:

        from steptime.airflow.dag_builder import training_dag

        dag = training_dag("nightly", workload="llama3.1", defaults={"gpus": "1,2"}, schedule="0 3 * * *")

    Args:
        dag_id: the DAG's id.
        workload: name of a workload of `config/workloads`; a family's name without a release means its
            default release.
        defaults: values of `PlanRequest` fields that the trigger form shows instead of their own defaults.
        schedule: when the DAG starts by itself, as Airflow's `DAG` takes it; missed runs are not caught up.
        default_args: Airflow's default arguments of all tasks, such as `owner` and `pool`. `retries` replaces
            steptime's number, except for the tasks `wait`; an `on_failure_callback` is called after
            steptime's own.
        tags: further tags of the DAG, besides `steptime` and the workload's name.
        dag_arguments: further arguments of Airflow's `DAG`, such as `on_failure_callback`, `start_date` or
            `is_paused_upon_creation`.
    """
    on_failure = [record_failure, *_callbacks(default_args.get("on_failure_callback"))]
    document, published = load_workload(workload), published_results(workload)
    arguments: dict[str, Any] = {
        "description": f"Benchmark the pre-training of {document.title}",
        "doc_md": documentation(document),
        "catchup": False,
        "max_active_runs": _RUNS_AT_ONCE,
        **dag_arguments,
    }
    with DAG(
        dag_id=dag_id,
        schedule=schedule,
        default_args={**RETRIES, **default_args, "on_failure_callback": on_failure},
        tags=["steptime", document.workload, *tags],
        **arguments,
    ) as dag:
        check_params = CheckParamsOperator(task_id="check_params", workload=workload)
        plan = check_params.output
        staged = StageTrainingOperator(task_id="stage", plan=plan).output

        @task_group(group_id="performance")
        def performance(run: Any) -> None:
            train(run, staged, published)

        @task_group(group_id="checkpoint")
        def checkpoint(save: Any, load: Any) -> None:
            with TaskGroup("save"):
                saving = train(save, staged, published)
            with TaskGroup("load"):
                train(load, staged, published, saving=saving)

        report = ReportOperator(task_id="report", plan=plan)
        report.as_teardown(setups=check_params, on_failure_fail_dagrun=True)
        # What is mapped over: no pairs if no checkpoint is asked for.
        runs = SelectOperator(task_id="performance_runs", returned=plan, field="runs")
        pairs = SelectOperator(task_id="checkpoint_pairs", returned=plan, field="checkpoint_pairs")
        trainings = [performance.expand(run=runs.output), checkpoint.expand_kwargs(pairs.output)]
        trainings >> report
    # Only now: Airflow gives each task a copy of what params its DAG has, and checks each field of each copy
    # when it stores the DAG. That was five sixths of the time that it takes to read the file.
    dag.params = ParamsDict({**dag_params(document, defaults), **dag.params})
    return dag


def _callbacks(given: Any) -> list[Any]:
    """Return callbacks as a list; Airflow accepts one, several or None."""
    if given is None:
        return []
    return [*given] if isinstance(given, (list, tuple)) else [given]


def train(
    run: Any,
    staged: Any,
    published: Asset | None,
    *,
    saving: TrainingSensor | None = None,
    submit_by: type[SubmitTrainingOperator] = SubmitTrainingOperator,
) -> TrainingSensor:
    """Create the tasks of one run in the current task group; return the sensor that waits for its job.

    Args:
        run: the name of the run, as XCom.
        staged: the files staged for the run, as XCom.
        published: the asset that is updated when the run's results are published; None in a sweep, where the
            task `publish` itself finds the asset of the run's workload.
        saving: the task that waits for the job whose checkpoint this run loads.
        submit_by: the operator of the task `submit`.
    """
    saved_in = None if saving is None else saving.task_id.removesuffix(".wait")
    submit = submit_by(task_id="submit", run=run, staged=staged, saved_in=saved_in)
    if saving is not None:
        saving >> submit
    wait = TrainingSensor(task_id="wait", submitted=submit.output, retries=_WAITING_RETRIES)
    end = EndTrainingOperator(task_id="end")
    # A training that failed has its log read, too; not a run that was skipped, as in a trial.
    parse = ReadLogOperator(task_id="parse", trigger_rule=TriggerRule.NONE_SKIPPED)
    validate = ValidateOperator(task_id="validate", handle=parse.output)
    outlets = [] if published is None else [published]
    publish = PublishOperator(task_id="publish", handle=validate.output, outlets=outlets, saved_in=saved_in)
    wait >> parse >> validate >> publish
    wait >> end.as_teardown()
    return wait


def documentation(document: Workload) -> str:
    """Return a text in Markdown: what the DAG benchmarks, at which GPU counts, and where results appear."""
    page = f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/plugin/step-times"
    return (
        f"Benchmarks the pre-training of **{document.title}** as `{document.document}` describes it.\n\n"
        f"{_table(document)}\n\n"
        f"[Plan]({page}/steptime/?view=plan&workload={document.workload}) shows what a set of params would "
        "run, and what it is expected to cost; so does `steptime plan`. "
        "Each run is one job; its task `wait` logs its progress, and results are on the page "
        f"[Step times]({page})."
    )


def _table(document: Workload) -> str:
    lines = ["| size | GPU type | dtype | scaling | GPUs |", "|---|---|---|---|---|"]
    for size in document.size_names():
        lines += [f"| {' | '.join(cells)} |" for cells in _rows(size, document.find_rules(size))]
    return "\n".join(lines)


def _rows(size: str, rules: Iterable[Configuration]) -> Iterable[tuple[str, ...]]:
    """Yield a table row for each configuration of a model size, without repeated rows."""
    return dict.fromkeys(
        (
            size,
            ", ".join(rule.gpu_types),
            ", ".join(rule.dtypes),
            ", ".join(rule.global_batch_size),
            ", ".join(map(str, rule.gpus)),
        )
        for rule in rules
    )
