"""Lives of jobs as Run:ai sees them: each request with its query and body, and what it means to steptime.

The tale is kept in tests/golden/runai.txt. After an intended change, rewrite it and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/clusters/test_runai_tale.py
"""

import re
from urllib.parse import unquote

import pytest
import yaml
from kept import assert_kept, masked
from stand_ins.runai import Fault

from steptime.clusters.base import Installation
from steptime.clusters.checks import NotApplicableError
from steptime.errors import SystemFailure, UserError

from .conftest import end_of, eventually

pytestmark = pytest.mark.long

MASKED = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "UUID",
    r"\d{4}-\d\d-\d\dT[\d:.]+Z": "TIME",
    r"\b1[789]\d{8}(\.\d+)?\b": "TIME",
    r"steptime-command-\w+-\w+": "steptime-command-HASH",
    r"command-[0-9a-f]{32}": "command-HASH",
    r"secret-[0-9a-f]+": "SECRET",
    r"http://127.0.0.1:\d+": "SERVER",
}


class Tale:
    """What is asked of the stand-in for Run:ai, and what comes of it."""

    def __init__(self, server, folder):
        self.parts = []
        self._server, self._folder = server, folder

    async def tell(self, what, doing):
        """Add to the tale what `doing` asks and what it returns or raises."""
        before = len(self._server.journal)
        try:
            result = await doing
            came = "" if result is None else str(result)
        except (SystemFailure, UserError) as error:
            result, came = error, f"{type(error).__name__}: {error}"
        lines = [f"== {what}"]
        for entry in self._server.journal[before:]:
            query = f"?{unquote(entry.query)}" if entry.query else ""
            line = f"{entry.method} {entry.path}{query}: {entry.status}"
            if line != lines[-1]:  # asked again while it waits
                lines.append(line)
            if entry.request is not None:
                body = yaml.safe_dump(entry.request, default_flow_style=None, sort_keys=False, width=1000)
                lines.append(body.strip())
        self.parts.append("\n".join([*lines, *([f"-> {came}"] if came else [])]))
        return result

    def told(self):
        text = "\n\n".join(self.parts) + "\n"
        return masked(text, {re.escape(str(self._folder)): "FOLDER", **MASKED})


async def checks(cluster):
    shown = {}
    for check in cluster.checks():
        try:
            shown[check.name] = await check.look()
        except NotApplicableError as error:
            shown[check.name] = str(error)
    return {name: said for name, said in shown.items() if name != "clock"}


async def test_jobs_as_they_are_asked_for(
    runai_server,
    runai_with,
    make_spec,
    make_gated,
    tmp_path,
):
    tale = Tale(runai_server, tmp_path)
    pools = {"node_pools": ["h100", "any"], "grace_s": 7.4, "gpus_per_node": 1}
    claims = [
        {"claim": "workspace", "path": str(tmp_path)},
        {"claim": "archive", "path": "/archive", "name": "old", "read_only": True},
    ]
    first = make_gated("First.Job", "true", slots=1, image="nvcr.io/nvidia/nemo:26.02", time_limit_s=90)
    first.spec = first.spec.model_copy(update={"installation": Installation(id="a1", address="https://air")})
    wide = make_gated("wide", "true", slots=2)
    runai_server.claims = ("workspace", "archive")
    async with runai_with(**pools, pvcs=claims) as cluster, runai_with() as again:
        await tale.tell("checks", checks(cluster))
        await tale.tell("submit a job of one pod", cluster.submit(first.spec))
        await tale.tell("submit it again, from elsewhere", again.submit(first.spec))
        await eventually(lambda: first.pid)
        first.let_go()
        await end_of(cluster, first.spec.name)
        await tale.tell("submit a job of two pods", cluster.submit(wide.spec))
        await eventually(lambda: wide.pid)
        await tale.tell("find a job that there is not", cluster.find("none"))
        await tale.tell("cancel one that there is not", cluster.cancel("none"))
        runai_server.fail(Fault("GET", "/workloads", "refuse", status=401, message="expired"))
        polled = {
            "what has ended is not asked for": ["First.Job"],
            "three jobs": ["wide", "First.Job", "none"],
        }
        for what, names in polled.items():
            await tale.tell(f"poll: {what}", end_states(cluster, names))
        other = make_spec("other", "sleep 100")
        await cluster.submit(other)
        await tale.tell("poll two that have not ended", end_states(cluster, ["wide", "other"]))
        await tale.tell("cancel", cluster.cancel("wide"))
        await cluster.cancel("other")
        await tale.tell("run a command", cluster.run(["echo", "two words"], timeout_s=77))
        refused = make_spec("refused", "true")
        for status, message in ((403, "exceeded quota: pods"), (403, "no"), (400, "bad image")):
            runai_server.fail(Fault("POST", "/workloads/trainings", "refuse", status=status, message=message))
            await tale.tell(f"refused with {status}", cluster.submit(refused))
        tale.parts[-3:] = [
            part.partition("\nPOST")[0] + "\n->" + part.rpartition("\n->")[2] for part in tale.parts[-3:]
        ]
    assert_kept("runai.txt", tale.told())


async def end_states(cluster, names):
    """Return the states by name, and reasons once they cannot change any more."""
    polled = await cluster.poll(names)
    return {
        name: "lives" if status.state.is_live else f"{status.state} {status.reason}"
        for name, status in polled.items()
    }
