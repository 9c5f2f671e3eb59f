"""Operators of a trial: wait for the rounds before, run or skip a variant, and say the answer at the end."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TriggerEvent

from steptime.airflow.base import airflow_errors, task_key
from steptime.airflow.budgets import budget_owner
from steptime.airflow.notifications import Event, notify
from steptime.airflow.operators import SubmitTrainingOperator
from steptime.airflow.summaries import as_text
from steptime.airflow.sweep.cells import load_plan
from steptime.airflow.sweep.operators import APPROVAL_TASK, REJECTED_BY_KEY
from steptime.airflow.task_state import OVER
from steptime.airflow.triggers import WaitingTrigger
from steptime.airflow.versions import AirflowFailException, AirflowSkipException, TaskDeferred
from steptime.clusters.config import load_cluster
from steptime.errors import SystemFailure
from steptime.judging.trial_answers import COLUMNS, RoundRun, TrialAnswer, round_runs, trial_state
from steptime.recipes.models import TrialPosition, TrialRules
from steptime.runs.launch import Attempt
from steptime.store.budgets import release, release_run
from steptime.store.database import wait_for_store
from steptime.store.ledger import Ledger
from steptime.store.run_queries import Store
from steptime.waiting import poll_until_async
from steptime.wording import counted

_ASKED_EVERY_S = 5.0
"""Seconds between two questions of a triggerer about the tasks of a trial's DAG run."""
_FIRST_TASK, _LAST_TASK = "submit", "publish"
"""The first and the last task of each run, in its task group."""


class RoundTrigger(WaitingTrigger):
    """Fires when the first `count` runs of a trial are over, or an earlier round was skipped as a whole.

    A run is over when it is published, failed or skipped. After a round in which nothing runs, the trial has
    ended.

    :param dag_id: the trial's DAG.
    :param run_id: its DAG run.
    :param task_id: the last task of each run.
    :param count: how many of its mapped instances have to be over.
    :param variants: the number of runs in a round; None to look at no rounds.
    """

    def __init__(
        self,
        *,
        dag_id: str,
        run_id: str,
        task_id: str,
        count: int,
        variants: int | None = None,
        **_of_another_version: Any,
    ) -> None:
        super().__init__(dag_id=dag_id, run_id=run_id, task_id=task_id, count=count, variants=variants)
        self.tasks = (dag_id, run_id, task_id)
        self.count, self.variants = count, variants

    async def event(self) -> TriggerEvent:
        """Wait until the runs are over; return an event with their number."""

        async def are_over() -> bool:
            try:
                states = await _shared_states(*self.tasks)
            except AirflowRuntimeError as error:
                self.log.warning("Airflow cannot be asked about the runs before: %s", error)
                return False
            if self.variants and _has_skipped_round(states, self.tasks[2], self.count, self.variants):
                return True
            return _are_over(states, self.tasks[2], self.count)

        await poll_until_async(are_over, every_s=_ASKED_EVERY_S)
        return TriggerEvent({"over": self.count})  # type: ignore[no-untyped-call]


_asked: dict[tuple[str, ...], tuple[float, asyncio.Task[dict[str, str | None]]]] = {}
"""The newest question about the tasks of a DAG run, which all its triggers in this triggerer share."""


async def _shared_states(*tasks: str) -> dict[str, str | None]:
    """Return the states of mapped tasks as `_states` does, at most `_ASKED_EVERY_S` old."""
    now = time.monotonic()
    for key in [key for key, (at, _) in _asked.items() if now - at >= _ASKED_EVERY_S]:
        del _asked[key]
    if tasks not in _asked:
        _asked[tasks] = now, asyncio.create_task(asyncio.to_thread(_states, *tasks))
    return await asyncio.shield(_asked[tasks][1])


def _states(dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
    """Return the states of the mapped instances of a last task, and of the first ones of the same runs.

    Their names are `task_id_0`, `task_id_1` and so on.
    """
    task_ids = [task_id, _first_task(task_id)]
    states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=task_ids, run_ids=[run_id])
    return dict(states.get(run_id, {}))


def _first_task(last_task: str) -> str:
    """Return the id of the first task in the task group of a last one."""
    return f"{last_task.rpartition('.')[0]}.{_FIRST_TASK}"


def _is_stopped(states: Mapping[str, str | None], task_id: str, count: int) -> bool:
    """Return whether a person ended the DAG run: a last task was skipped, though its run was not.

    Airflow then skips all tasks that have not begun, and a task that begins at that moment would take their
    runs for over.
    """
    return any(
        states.get(f"{task_id}_{index}") == "skipped"
        and states.get(f"{_first_task(task_id)}_{index}") != "skipped"
        for index in range(count)
    )


def _are_over(states: Mapping[str, str | None], task_id: str, count: int) -> bool:
    return all(states.get(f"{task_id}_{index}") in OVER for index in range(count))


def _has_skipped_round(states: Mapping[str, str | None], task_id: str, count: int, variants: int) -> bool:
    """Return whether nothing ran in one of the complete rounds among the first `count` runs."""
    return any(
        all(states.get(f"{_first_task(task_id)}_{start + index}") == "skipped" for index in range(variants))
        for start in range(0, count - variants + 1, variants)
    )


class SubmitRoundOperator(SubmitTrainingOperator):
    """Submits the job of a variant in a round of a trial, once the rounds before are over; or skips it.

    It waits in the triggerer, and then asks where the trial stands by the runs of earlier rounds. The run is
    skipped if its variant has left or the trial has ended. Nothing else counts, so that after any crash each
    run gets the same answer. On clusters where jobs can run on the same nodes again, the variants of a round
    follow one another on the nodes of the first. Once a round is skipped, all later ones are skipped at once.
    """

    def execute(self, context: Context) -> Any:
        """Wait for the runs before; then submit the job, or raise AirflowSkipException with the reason."""
        with airflow_errors():
            position = self._position(context)
            variants = len(position.rules.variants)
            in_earlier_rounds = position.index - position.index % variants
            ti, task_id = context["ti"], self._last_task
            states = _states(ti.dag_id, ti.run_id, task_id) if position.index else {}
            before = position.index if position.rules.same_nodes else in_earlier_rounds
            stopped = "the trial was stopped while this run waited: it has no job"
            if _is_stopped(states, task_id, before):
                raise AirflowFailException(stopped)
            are_over = _are_over(states, task_id, in_earlier_rounds)
            if not are_over and not _has_skipped_round(states, task_id, in_earlier_rounds, variants):
                self._wait_for(context, position, in_earlier_rounds)
            _, runs = trial_runs(self, context)
            state = trial_state(position.rules, runs, complete=position.round - 1)
            if state.ended or position.variant not in state.still_in:
                wait_for_store(lambda: release_run(budget_owner(context), self.run), self.log.warning)
                why = f"{position.variant} has left the trial"
                if state.ended:
                    why = f"the trial has ended after {counted(state.round, 'round')}: {state.reason}"
                raise AirflowSkipException(why)
            if not are_over:
                raise AirflowFailException(stopped)
            if not _are_over(states, task_id, before):
                self._wait_for(context, position, before)
        return super().execute(context)

    @property
    def _last_task(self) -> str:
        """The id of the last task in the task group of this one."""
        return f"{self.task_id.rpartition('.')[0]}.{_LAST_TASK}"

    def _wait_for(self, context: Context, position: TrialPosition, before: int) -> NoReturn:
        """Defer this task until the `before` first runs of the trial are over, or the trial has ended."""
        rules, ti = position.rules, context["ti"]
        self.log.info("round %d of %s waits for the %d runs before it", position.round, rules.trial, before)
        trigger = RoundTrigger(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=self._last_task,
            count=before,
            variants=len(rules.variants),
        )
        raise TaskDeferred(trigger=trigger, method_name="go_on_in_round")

    def go_on_in_round(self, context: Context, event: dict[str, Any]) -> Any:
        """Execute this task again, now that the runs before are over."""
        self.log.info("the %d runs before it are over, or need not run", event["over"])
        return self.execute(context)

    def _position(self, context: Context) -> TrialPosition:
        planned = asyncio.run(self.ledger.planned_run(task_key(context), self.run))
        if planned.run.trial is None:
            raise SystemFailure(f"{self.run} is no run of a trial")
        return planned.run.trial

    def _attempt(self, context: Context) -> Attempt:
        """Return the attempt, on the nodes of the round's first run if these can be requested."""
        attempt = super()._attempt(context)
        position = attempt.run.trial
        if position is None or not position.rules.same_nodes:
            return attempt
        _, runs = trial_runs(self, context)
        nodes = _nodes_of_round(runs, position)
        if not nodes:
            return attempt
        config = load_cluster(attempt.run.cluster)
        self.log.info("on the nodes of the round's first run: %s", ", ".join(nodes))
        return replace(attempt, run=config.on_nodes(attempt.run, nodes))


def _nodes_of_round(runs: Sequence[RoundRun], position: TrialPosition) -> tuple[str, ...]:
    """Return the nodes of the first run of a round whose nodes are known; empty if there is none."""
    earlier = (run for run in runs if run.round == position.round and run.position < position.index)
    return next((run.nodes for run in earlier if run.nodes), ())


def trial_runs(task: BaseOperator, context: Context) -> tuple[TrialRules | None, tuple[RoundRun, ...]]:
    """Return the rules and the runs of the trial's DAG run, by the metrics store and the job ledger."""
    ti, store = context["ti"], Store()
    run_after = context["dag_run"].run_after.timestamp()  # not those of a deleted DAG run with the same id
    jobs = [
        job
        for job in asyncio.run(Ledger(task.log.warning).jobs_of_dag_run(task_key(context)))
        if job.run_after == run_after
    ]
    names = {job.name for job in jobs}  # without those of another Airflow that shares the store
    return wait_for_store(
        lambda: round_runs(
            store,
            [row for row in store.list_runs(ti.dag_id, ti.run_id) if row["job_name"] in names],
            jobs,
        ),
        task.log.warning,
    )


def _readable(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of an answer with headings for names, and without columns that have no value."""
    headings = {column.name: column.title for column in COLUMNS}
    filled = [name for name in headings if any(row[name] is not None for row in rows)]
    return [{headings[name]: row[name] for name in filled} for row in rows]


class ReportTrialOperator(BaseOperator):
    """Prints the answer of a trial; fails if the trial was stopped before it has one.

    This task alone decides the DAG run's state, as `ReportOperator` does.

    :param checked: what the trial's first task returned. (templated)
    """

    template_fields: Sequence[str] = ("checked",)
    ui_color: str = "#e2f3e4"

    def __init__(self, *, checked: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checked = checked

    def execute(self, context: Context) -> None:
        """Release the reserved budget, print the answer in a sentence and a table, and notify people."""
        if not self.checked:
            raise AirflowFailException("nothing was started: see the log of check_trial")
        with airflow_errors():
            wait_for_store(lambda: release(budget_owner(context)), self.log.warning)
            plan = load_plan(self, context, self.checked)
            if rejected_by := context["ti"].xcom_pull(task_ids=APPROVAL_TASK, key=REJECTED_BY_KEY):
                self.log.info("rejected by %s: nothing was started", rejected_by)
                return
            rules, runs = trial_runs(self, context)
            rules = rules or plan.trial
            if rules is None:
                raise SystemFailure(f"{plan.title} is no trial")
            answer = TrialAnswer(
                rules, trial_state(rules, runs, complete=max((run.round for run in runs), default=0)), runs
            )
        self.log.info("%s", answer.sentence)
        self.log.info("%s", as_text(_readable(answer.rows), title=f"variants of {rules.trial}"))
        notify(Event.SWEEP_FINISHED, f"{plan.title}: {answer.sentence}", context, self.log.error)
        if not answer.state.ended:
            raise AirflowFailException("the trial was stopped before its answer is known")
        if answer.state.reason == "none can run":
            raise AirflowFailException("no variant can run: see the causes in the table above")
