"""Figures as runs of a metrics store of their own: a series for each figure, judged as trainings are.

What makes the series of a figure stands where a training's has it: the benchmark with its arguments as the
workload, the figure's name as the size, its unit as the data type, the machine's processor as the cluster and
its cores as the GPUs. A rate is kept as the seconds of a thousand, as of a run's seconds less is better.
"""

import hashlib
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from os import cpu_count
from pathlib import Path

from figures import Figure
from steptime.clusters.base import Job, JobState, JobStatus, Staged
from steptime.judging import judgements
from steptime.judging.detection import Standing
from steptime.logs.models import Step, TrainingLog
from steptime.recipes.models import Mode, Parallelism, Recipe, Run, Window
from steptime.recipes.named import NamedRecipe
from steptime.results.columns import Row
from steptime.results.measurement import Measurement
from steptime.results.models import Check, Provenance, Result, Submitted, Verdict
from steptime.results.provenance import of_this_code
from steptime.results.record import make_record
from steptime.results.store import Store

BENCHMARKS = Path(__file__).parent
PACKAGES = ("apache-airflow", "pydantic", "sqlalchemy", "typer")
"""Whose versions a series shows as events."""
NO_MODEL = NamedRecipe(architecture="megatron_bridge", family="none", recipe="none", seq_length=1)
"""A recipe has a model, and this is the one of which least has to be made up."""


def processor() -> str:
    """The model of this machine's processor, by which the same machine is known under another name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def publish(store: Store, benchmark: str, arguments: Sequence[str], figures: Mapping[str, Figure]) -> None:
    """Publish each figure of a run of a benchmark as a run of its own; 0 has no ratio to others."""
    made_by, now = _made_by(BENCHMARKS / f"{benchmark}.py"), time.time()
    for figure in figures.values():
        if figure.value > 0:
            run = _run(benchmark, arguments, figure)
            judgements.publish(store, _result(run, figure, made_by, now))


def standing(store: Store, benchmark: str, arguments: Sequence[str], figure: Figure) -> Standing | None:
    """How a figure stands after its last run on this machine; None where it is not judged."""
    run = _run(benchmark, arguments, figure)
    newest = store.results(
        cluster=run.cluster,
        workload=run.recipe.workload,
        size=figure.name,
        dtype=run.recipe.dtype,
        gpus=run.recipe.gpus,
        limit=1,
    )
    judged = judgements.judged_run(store, newest[0]) if newest and figure.value > 0 else None
    return judged.standing if judged else None


def newest_figures(store: Store) -> Iterator[tuple[Row, Figure, Standing]]:
    """The newest run of each series, its figure, and how it stands; machine by machine, then by benchmark."""
    newest = {
        tuple(row[name] for name in ("cluster", "gpus", "workload", "size", "dtype")): row
        for row in reversed(store.results())
    }
    for _, row in sorted(newest.items(), key=lambda one: one[0][:3]):
        judged = judgements.judged_run(store, row)
        if judged is not None:
            figure = Figure(**store.parsed_log(row["job_name"])["log"]["started"]["figure"])
            yield row, figure, judged.standing


def _stored(figure: Figure) -> tuple[float, str]:
    """Its number as a run's seconds, and what that is a number of."""
    if figure.better == "higher":
        return 1000 * figure.as_time, f"s for 1000 {figure.unit.removesuffix('/s')}"
    return (figure.value / 1000, "s") if figure.unit == "ms" else (figure.value, figure.unit)


def _run(benchmark: str, arguments: Sequence[str], figure: Figure) -> Run:
    cores = cpu_count() or 1
    recipe = Recipe(
        workload=" ".join((benchmark, *arguments)),
        size=figure.name,
        dtype=_stored(figure)[1],
        gpu_type="cpu",
        scaling="weak",
        proxy=False,
        model=NO_MODEL,
        parallelism=Parallelism(data=cores),
        micro_batch_size=1,
        global_batch_size=cores,
        gpus_per_node=cores,
        image=None,
        flops_formula="none",
    )
    return Run(
        experiment=benchmark,
        recipe=recipe,
        mode=Mode.PERFORMANCE,
        max_steps=1,
        window=Window(first=0, last=0),
        time_limit_s=3600,
        cluster=processor(),
    )


def _made_by(script: Path) -> Provenance:
    """The code that is measured, and what measures it: where either changes, the series shows it."""
    staged = Staged(
        python=sys.executable,
        venv_lock_sha256=None,
        trainer_path=str(script),
        trainer_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
    )
    return Provenance(**of_this_code(), staged=staged)


def _result(run: Run, figure: Figure, made_by: Provenance, now: float) -> Result:
    """As `validate` hands on a training that has ended: of one step, which is the figure."""
    script, seconds = made_by.staged.trainer_path, _stored(figure)[0]
    slug = re.sub("[^a-z0-9]+", "-", figure.name.lower()).strip("-")
    job = Job(
        cluster=run.cluster,
        name=f"{run.experiment}-{slug}-{1000 * now:.0f}",
        job_id=f"{1000 * now:.0f}",
        directory=str(BENCHMARKS),
        log_path=script,
        submitted_at=now,
    )
    submitted = Submitted(run=run, request=None, job=job, attempt=1, made_by=made_by)
    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0, nodes=(platform.node(),))
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    log = TrainingLog(
        path=script,
        format="figure",
        bytes_read=0,
        steps=(Step(global_step=0, step_time_s=seconds),),
        started={"figure": asdict(figure), "versions": versions},
    )
    return Result(
        submitted=submitted,
        status=status,
        log=log,
        measurement=Measurement(
            window=run.window, steps_in_window=1, step_time_mean_s=seconds, step_time_median_s=seconds
        ),
        verdict=Verdict(checks=tuple(_goal(figure))),
        record=make_record(submitted, status, log),
    )


def _goal(figure: Figure) -> Iterator[Check]:
    """A missed goal is shown beside the number, which counts."""
    if figure.goal is not None:
        found = f"{figure.value:.4g} {figure.unit}"
        message = f"Expected {figure.better} than {figure.goal:.4g} {figure.unit}, and it is {found}."
        yield Check(name="goal", passed=not figure.misses_goal, message=message, severity="warning")
