"""Check a cluster before anything runs there: the checks of its kind, and those common to all kinds."""

import asyncio
import posixpath
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from steptime.clusters.base import Cluster
from steptime.clusters.checks import (
    CheckFailedError,
    CheckOutcome,
    CheckResult,
    ClusterCheck,
    NotApplicableError,
)
from steptime.clusters.config import ClusterConfig, open_cluster
from steptime.clusters.connections import Connections
from steptime.clusters.containers import ContainerRuntime, ImageForm
from steptime.errors import SystemFailure, UserError, one_line
from steptime.plug_points import CONTAINERS
from steptime.recipes.models import Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workloads
from steptime.staging.checking import check_plan
from steptime.staging.stage import find_image, python_version, require_hub_files

_TIMEOUT_S = 180
"""Seconds for one check: a Slurm command may take a minute, the start of a Run:ai pod longer."""


def runs_to_check(config: ClusterConfig, workload: str | None) -> tuple[Run, ...]:
    """Return the runs to check a cluster for: the default one of `workload`, or of each workload that fits.

    Raises UserError if the cluster can run nothing of `workload`.
    """
    if workload is not None:
        planned = plan(PlanRequest(workload=workload, cluster=config.name))
        check_plan(planned)
        return planned.runs[:1]
    runs: list[Run] = []
    for document in load_workloads()[0]:
        if config.gpu_type in document.gpu_types:
            runs += plan(PlanRequest(workload=document.workload, cluster=config.name)).runs[:1]
    return tuple(runs)


async def check_cluster(
    config: ClusterConfig,
    connections: Connections,
    runs: Sequence[Run],
    report: Callable[[CheckOutcome], None],
) -> tuple[CheckOutcome, ...]:
    """Run every check of a cluster, in order; `report` gets the outcome of each immediately.

    `runs` are what the cluster should be able to run. Nothing is submitted. If the connection cannot be
    opened, that is the only outcome. If a required check such as the login fails, all later checks are
    reported as not applicable.
    """
    outcomes: list[CheckOutcome] = []
    blocked_by: str | None = None
    async with AsyncExitStack() as stack:
        try:
            cluster = await stack.enter_async_context(open_cluster(config, connections))
        except (UserError, SystemFailure) as error:
            outcome = CheckOutcome(check="login", result=CheckResult.FAILED, message=str(error))
            report(outcome)
            return (outcome,)
        for check in (*cluster.checks(), *_common(cluster, config, runs)):
            if blocked_by is None:
                outcome = await _look(check)
            else:
                why = f"cannot be checked before {blocked_by}"
                outcome = CheckOutcome(check=check.name, result=CheckResult.NOT_APPLICABLE, message=why)
            if check.is_required and outcome.result is CheckResult.FAILED:
                blocked_by = check.name
            outcomes.append(outcome)
            report(outcome)
    return tuple(outcomes)


async def _look(check: ClusterCheck) -> CheckOutcome:
    outcome = partial(CheckOutcome, check=check.name)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return outcome(result=CheckResult.OK, message=await check.look())
    except NotApplicableError as reason:
        return outcome(result=CheckResult.NOT_APPLICABLE, message=str(reason))
    except CheckFailedError as failure:
        return outcome(result=CheckResult.FAILED, message=str(failure), remedy=failure.remedy)
    except (UserError, SystemFailure) as error:
        return outcome(result=CheckResult.FAILED, message=str(error))
    except TimeoutError:
        return outcome(
            result=CheckResult.FAILED,
            message=f"no answer within {_TIMEOUT_S} s",
            remedy="look whether the cluster is overloaded, and check again",
        )


def _common(cluster: Cluster, config: ClusterConfig, runs: Sequence[Run]) -> tuple[ClusterCheck, ...]:
    """Return the checks that every kind of cluster has."""
    return (
        ClusterCheck("work_dir", partial(_work_dir, cluster, config), is_required=True),
        ClusterCheck("python", partial(_python, cluster, config)),
        ClusterCheck("container", partial(_container, cluster, config, runs)),
        ClusterCheck("images", partial(_images, cluster, config, runs)),
        ClusterCheck("placement", partial(_placement, cluster, config, runs)),
        ClusterCheck("Hugging Face cache", partial(_hub, cluster, config, runs)),
    )


async def _work_dir(cluster: Cluster, config: ClusterConfig) -> str:
    path = posixpath.join(config.root, f".cluster-check-{uuid.uuid4().hex}")
    content = path.encode()
    try:
        await cluster.write(path, content)  # under another name, synced and renamed
        read = await cluster.read(path)
        here = cluster.local_path(path)
        if here is None:
            await cluster.run(["rm", "-f", "--", path], timeout_s=60)
        else:
            await asyncio.to_thread(here.unlink)
    except (SystemFailure, OSError) as error:
        raise CheckFailedError(
            str(error),
            f"let the login's user create and rename files in {config.root}, or change work_dir: in "
            f"config/clusters/{config.name}.yaml",
        ) from None
    if read != content:
        raise CheckFailedError(
            f"a file that was written to {config.root} and renamed had other content when read back",
            "use a file system that shows a renamed file at once",
        )
    return f"{config.root}: written, renamed and read back"


async def _python(cluster: Cluster, config: ClusterConfig) -> str:
    if config.gpu_type == "cpu":
        return f"{config.python} is Python {await python_version(cluster, config)}"
    if config.image_form is ImageForm.NAME:
        raise NotApplicableError("runs use the Python of their image")
    # What the scripts that import images need most.
    completed = await cluster.run(
        [
            config.python,
            "-c",
            "import hashlib, platform; hashlib.file_digest; print(platform.python_version())",
        ],
        timeout_s=60,
    )
    if completed.exit_code:
        reason = one_line(completed.stderr.strip(), at_most=200)
        raise CheckFailedError(
            f"{config.python} is missing, or older than 3.11: {reason}",
            f"install Python 3.11 there, or name it as python: in config/clusters/{config.name}.yaml",
        )
    return f"{config.python} is Python {completed.stdout.strip()}"


async def _container(cluster: Cluster, config: ClusterConfig, runs: Sequence[Run]) -> str:
    if config.image_form is None:
        if images := sorted({run.recipe.image for run in runs if run.recipe.image is not None}):
            raise CheckFailedError(
                f"container is none, and recipes for {config.gpu_type} run in images ({images[0]})",
                f"name the program that runs them ({', '.join(config.containers())}) as container: in "
                f"config/clusters/{config.name}.yaml",
            )
        raise NotApplicableError(f"container is none, and no recipe for {config.gpu_type} needs an image")
    runtime: ContainerRuntime = CONTAINERS.load(config.container)
    if not runtime.probe:
        raise NotApplicableError(f"the cluster itself starts jobs in images ({config.container})")
    completed = await cluster.run(runtime.probe, timeout_s=60)
    if completed.exit_code or runtime.probe_prints not in completed.stdout:
        reason = completed.stderr.strip() or f"no {runtime.probe_prints} in its output"
        raise CheckFailedError(
            f"{config.container} does not work on the login node: {' '.join(runtime.probe)}: "
            f"{one_line(reason, at_most=200)}",
            f"install {config.container} there and on the nodes, or change container: in "
            f"config/clusters/{config.name}.yaml",
        )
    return f"{config.container} works"


async def _images(cluster: Cluster, config: ClusterConfig, runs: Sequence[Run]) -> str:
    names = sorted({run.recipe.image for run in runs if run.recipe.image is not None})
    if config.image_form is None or not names:
        raise NotApplicableError("none of these runs uses an image")
    if config.image_form is ImageForm.NAME:
        raise NotApplicableError("nodes fetch images themselves; the first run shows whether they can")
    permitted = []
    for name in names:
        try:
            config.require_permitted("image", name, "permitted_images")
        except UserError:
            continue
        permitted.append(name)
    answers = {name: await find_image(cluster, config, name) for name in permitted}
    unknown = [name for name, answer in answers.items() if answer is None]
    if not permitted or unknown == permitted:
        why = "import_in_job is set" if config.import_in_job else f"{config.container} cannot ask a registry"
        raise NotApplicableError(
            f"{why}: the first run shows whether images can be fetched"
            if permitted
            else "permitted_images has no image of a recipe"
        )
    first, answer = next((name, answer) for name, answer in answers.items() if answer is not None)
    more = f"; {len(permitted) - 1} more" if len(permitted) > 1 else ""
    return f"{first}: {answer}{more}"


async def _placement(cluster: Cluster, config: ClusterConfig, runs: Sequence[Run]) -> str:
    if not runs:
        raise NotApplicableError(f"no recipe runs on {config.gpu_type}")
    run = min(runs, key=lambda run: run.recipe.gpus)
    test = config.placement_test(run)
    if test is None:
        raise NotApplicableError("this kind of cluster cannot test a submission without submitting a job")
    completed = await cluster.run(test, timeout_s=60)
    if completed.exit_code:
        reason = one_line("; ".join(completed.stderr.split("\n")).strip("; "), at_most=300)
        raise CheckFailedError(
            f"{run.label} of {run.recipe.workload} would be refused: {reason}",
            "change what the cluster's file asks for (partition, account, gpu_option, gpus_per_node, "
            f"extra_options): {' '.join(test)}",
        )
    return f"{run.label} of {run.recipe.workload} would be accepted"


async def _hub(cluster: Cluster, config: ClusterConfig, runs: Sequence[Run]) -> str:
    needing = [run for run in runs if run.recipe.hub_files]
    if not needing:
        raise NotApplicableError(
            f"none of the checked recipes for {config.gpu_type} loads files from the Hugging Face hub"
        )
    missing: list[UserError] = []
    for run in needing:
        try:
            await require_hub_files(cluster, config, run)
        except UserError as error:
            missing.append(error)
    if missing and len(runs) == 1:
        raise missing[0]
    if missing:
        raise NotApplicableError(
            f"{len(missing)} of {len(needing)} recipes lack files from the Hugging Face hub; 'steptime "
            f"cluster check {config.name} --workload NAME' prints the command that downloads them for one "
            "workload"
        )
    return f"has the files of {len(needing)} recipes by name"
