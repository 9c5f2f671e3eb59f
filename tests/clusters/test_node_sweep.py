"""A node sweep of four nodes on a real Slurm, around a job that holds one of them."""

import sys
from pathlib import Path

import pytest
from staged import staged_files
from stored import write

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.judging.node_pairs import describe_node_pairs
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.models import OwnProgram
from steptime.recipes.sweep_planning import expand_cell, plan_sweep
from steptime.recipes.sweeps import load_sweep
from steptime.store.run_queries import Store
from steptime.waiting import poll_until_async

ROOT = Path(__file__).parents[2]
LAUNCHER = OwnProgram(kind="command", command=("python", "-m", "collective_stand_in"))


def run_of(cell):
    (run,) = expand_cell(cell)
    return run.model_copy(update={"recipe": run.recipe.model_copy(update={"launcher": LAUNCHER})})


async def ended(cluster, names):
    async def poll():
        description = await cluster.poll([*names])
        return None if any(description[name].state.is_live for name in names) else description

    return await poll_until_async(poll, every_s=1, timeout_s=500) or {}


@pytest.mark.slurm
@pytest.mark.long
async def test_a_node_sweep_around_a_running_job(
    slurm,
    make_slurm_config,
    make_gated,
    make_result,
    tmp_path,
):
    held = make_gated("held", slots=2)  # takes all of node1
    await slurm.submit(held.spec)
    staged = staged_files(sys.executable, f"{ROOT}:{ROOT / 'tests' / 'stand_ins' / 'collective'}")
    config, runs, jobs = make_slurm_config(), {}, {}
    sweep = load_sweep("example-nodes")
    few = sweep.model_copy(update={"nodes": sweep.nodes.model_copy(update={"names": "node[1-3,7]"})})
    for number, cell in enumerate(plan_sweep(few).cells):
        run = run_of(cell)
        spec = job_spec(run, staged, config, identity=f"d/r/{number}", started=1_700_000_000)
        job = await slurm.submit(spec)
        runs[job.name], jobs[job.name] = run, job
    waiting = {
        name for name, run in runs.items() if "node1" in str(run.cluster_options["nodelist"]).split(",")
    }
    done = await ended(slurm, runs.keys() - waiting)
    assert (len(done), len(waiting)) == (6, 4)
    assert {status.state for status in (await slurm.poll([*waiting])).values()} == {JobState.QUEUED}
    held.let_go()
    done |= await ended(slurm, waiting)
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    for name, status in done.items():
        run, log = runs[name], read_log(jobs[name].log_path, max_steps=20)
        measured = measure(run, log)
        verdict = validate(run, status, log, measured)
        assert verdict.valid, verdict.reason
        plain = make_result(name, run=run, status=status, log=log, measurement=measured, verdict=verdict)
        provenance = plain.submitted.provenance.model_copy(update={"sweep": "nodes"})
        shared = {"run": run, "status": status, "log": log, "measurement": measured, "verdict": verdict}
        write(store, make_result(name, **shared, provenance=provenance))
    description = describe_node_pairs(store, "nodes")
    assert (len(description.nodes), len(description.pairs)) == (4, 6)
    assert (description.slow_nodes, list(description.slow_links)) == ({}, ["node3 - node7"])
