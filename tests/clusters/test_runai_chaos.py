"""A job's life on a Run:ai whose answers are faulty at random, by seed.

Whatever is answered: a job is never submitted twice, never lost, never called gone while it runs, and never
written off as the user's mistake.
"""

import os
import random
from collections.abc import Awaitable, Callable

import pytest
from own_clock import waits_over_at_once
from stand_ins.runai.chaos import Chaos

from steptime import waiting
from steptime.clusters.base import JobState
from steptime.clusters.runai import client as runai_client
from steptime.clusters.runai import cluster as runai_backend
from steptime.clusters.runai.workloads import workload_name
from steptime.errors import SystemFailure

Step = Callable[[], Awaitable[None]]

prepare = runai_backend.JobNotes.prepare

_TRIES = 3
_OLD_S = 3600.0
"""Seconds after which a job that is not found may be called gone."""


class Life:
    """The life of one job, whose every step may meet faults; a `SystemFailure` is tried again."""

    def __init__(self, seed, stand_in, runai_with, spec):
        self.chance = random.Random(f"runai {seed}")  # noqa: S311 (no secret)
        self.chaos = Chaos(
            self.chance, self.chance.choice((0.15, 0.4, 0.7)), is_submitted=lambda: bool(self.workloads)
        )
        self._stand_in, self._runai_with, self._spec = stand_in, runai_with, spec
        self._ids = set()

    @property
    def workloads(self):
        return self._stand_in.named(workload_name(self._spec.name))

    async def live(self):
        """Submit the job, watch it, end it, and look it up; check what holds at any time."""
        self._stand_in.door.ahead_s = self.chance.choice((0.0, _OLD_S))
        self._stand_in.hidden_s = 0.0 if self._stand_in.door.ahead_s else self.chance.uniform(0, 50)
        submitted = await self._attempt(self._submit)
        if submitted or self.chance.random() < 0.5:
            await self._surely(self._submit)
            (workload,) = self.workloads
            workload.shown_at = 0
            self._stand_in.do(_force(workload, "Running"))
            await self._attempt(self._watch)
            if self.chance.random() < 0.5:
                self._stand_in.do(_force(workload, "Completed"))
                await self._attempt(self._watch)
                await self._surely(self._see_success)
                return
        await self._attempt(self._cancel)
        await self._surely(self._cancel)
        assert len(self.workloads) <= 1
        if self._ids:
            await self._attempt(self._submit)
            await self._surely(self._submit)

    async def _attempt(self, step):
        """Try a step a few times, each with a new client as another task has; return whether it succeeded."""
        self._stand_in.door.draw = self.chaos
        try:
            for _ in range(_TRIES):
                try:
                    await step()
                except SystemFailure as failure:
                    self.chaos.drawn.append(f"-- {step.__name__}: {failure}")
                else:
                    return True
            return False
        finally:
            self._stand_in.door.draw = None

    async def _surely(self, step):
        self.chaos.drawn.append(f"-- {step.__name__}, without faults")
        await step()

    async def _submit(self):
        try:
            async with self._runai_with(poll_interval_s=1, grace_s=1) as cluster:
                self._ids.add((await cluster.submit(self._spec)).job_id)
        finally:
            assert len(self.workloads) <= 1, "it was submitted twice"
        assert self._ids == {self.workloads[0].id}

    async def _watch(self):
        async with self._runai_with(poll_interval_s=1, grace_s=1) as cluster:
            found = await cluster.find(self._spec.name)
            assert found is not None, "the job was lost"
            assert found.job_id in self._ids
            for _ in range(3):
                status = (await cluster.poll([self._spec.name]))[self._spec.name]
                is_live = self.workloads[0].phase == "Running"
                assert status.state.is_live == is_live, (
                    f"{status} of a workload that is {self.workloads[0].phase}"
                )

    async def _see_success(self):
        async with self._runai_with(poll_interval_s=1, grace_s=1) as cluster:
            assert (await cluster.poll([self._spec.name]))[self._spec.name].state is JobState.SUCCEEDED

    async def _cancel(self):
        async with self._runai_with(poll_interval_s=1, grace_s=1) as cluster:
            await cluster.cancel(self._spec.name)
        for workload in self.workloads:
            assert workload.deleted_at or workload.phase == "Stopped", (
                f"it is cancelled, and {workload.phase}"
            )


def _prepare_by_the_clock(notes):
    prepare(notes)
    now = runai_backend.time.time()
    os.utime(notes._volume.local(notes.start_script), (now, now))


async def _force(workload, phase):
    workload.forced = phase
    workload.enter(phase)


async def live_through(
    seed,
    stand_in,
    runai_with,
    make_spec,
    monkeypatch,
):
    stand_in.dwell_s["Creating"] = 1e9  # no pod is started: the test sets the phases
    life = Life(seed, stand_in, runai_with, make_spec(f"chaos-{seed}", "true"))
    with monkeypatch.context() as patch:
        waits_over_at_once(patch, waiting, runai_client, runai_backend)
        patch.setattr(runai_backend, "_CANCEL_MARGIN_S", 40.0)
        patch.setattr(runai_backend.JobNotes, "prepare", _prepare_by_the_clock)
        stand_in.clock = lambda: float(runai_backend.time.time())
        try:
            await life.live()
        except BaseException as error:
            error.add_note("\n".join([f"seed {seed}, share {life.chaos.share}", *life.chaos.drawn]))
            raise


@pytest.mark.parametrize("seed", [3, 11])
async def test_a_job_survives_faulty_answers(
    seed,
    runai_server,
    runai_with,
    make_spec,
    monkeypatch,
):
    await live_through(seed, runai_server, runai_with, make_spec, monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(100, 300, 20))
async def test_jobs_survive_faulty_answers(
    first,
    runai_server,
    runai_with,
    make_spec,
    monkeypatch,
):
    for seed in range(first, first + 20):
        await live_through(seed, runai_server, runai_with, make_spec, monkeypatch)
