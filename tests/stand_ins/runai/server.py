"""The HTTP side of the stand-in: Run:ai's endpoints, bearer tokens that expire, and a server in a thread."""

import asyncio
import base64
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from stand_ins.runai.answers import details, listed
from stand_ins.runai.faults import Entry, Fault, FaultyDoor
from stand_ins.runai.workloads import StandInWorkload

from steptime.clusters.local.cluster import LocalCluster, LocalConfig

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
"""Names that Kubernetes accepts as a label (RFC 1123), beginning with a letter as for a service."""
_FILTER = re.compile(r"(\w+)(==|!=|<=|>=|=@|!@|=\^|=\$)(.*)")
_KINDS = {"trainings": False, "distributed": True}
T = TypeVar("T")


class RunaiStandIn:
    """A control plane and its cluster of `gpus` slots on this machine."""

    application, secret = "steptime-tests", f"secret-{secrets.token_hex(16)}"
    project, project_id = "llm", "4711"
    cluster_id = "71f69d83-ba66-4822-adf5-55ce55efd210"

    def __init__(self, folder: Path, *, gpus: int = 2, claims: tuple[str, ...] = ("workspace",)) -> None:
        self.claims = claims
        self.token_lifetime_s = 3600
        self.tokens: dict[str, float] = {}
        """Each issued token, with the time at which it expires."""
        self.workloads: dict[str, StandInWorkload] = {}
        self.dwell_s: dict[str, float] = {}
        self.page_limit = 500
        self.hidden_s = 0.0
        """Seconds, by `clock`, in which lookups do not show a new workload yet."""
        self.clock: Callable[[], float] = time.time
        self.url = ""
        self._folder = folder
        fields = {"kind": "local", "gpu_type": "cpu", "exclusive": False, "grace_s": 5}
        self._gpus, self._cpus = (
            LocalCluster(
                LocalConfig.model_validate({"name": name, "work_dir": str(folder), "slots": slots, **fields})
            )
            for name, slots in (("gpus", gpus), ("cpus", 16))
        )
        self.door = FaultyDoor(self._app())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._creating: set[str] = set()

    @property
    def journal(self) -> list[Entry]:
        """Return every request so far, oldest first."""
        return self.door.journal

    def calls(self, method: str, path: str) -> list[Entry]:
        """Return the requests that match; `path` is a regular expression for what follows /api/v1."""
        return [entry for entry in self.journal if entry.method == method and re.fullmatch(path, entry.path)]

    def fail(self, fault: Fault) -> None:
        """Make a fault happen."""
        self.door.faults.append(fault)

    def revoke_tokens(self) -> None:
        """Refuse every token that was issued so far."""
        self.tokens.clear()

    def workload(self, name: str) -> StandInWorkload:
        """Return the latest workload of that name."""
        return next(workload for workload in reversed(self.workloads.values()) if workload.name == name)

    def named(self, name: str) -> list[StandInWorkload]:
        """Return every workload that ever had that name."""
        return [workload for workload in self.workloads.values() if workload.name == name]

    def do(self, action: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine inside the server: `do(workload.suspend())`."""
        if self._loop is None:
            raise RuntimeError("the stand-in does not run")
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(60)

    @contextmanager
    def running(self) -> Iterator["RunaiStandIn"]:
        """Serve on a free port until the end of the block; workloads that still run then are killed."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self.door, lifespan="off", ws="none", log_level="critical", loop="asyncio", date_header=False
        )
        server = uvicorn.Server(config)
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            ready.set()
            await server.serve(sockets=[listener])
            for task in [
                workload.bringing_up for workload in self.workloads.values() if workload.bringing_up
            ]:
                await task
            for cluster in (self._gpus, self._cpus):
                for job in await cluster.live_jobs():
                    await cluster.cancel(job.name)

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="runai stand-in", daemon=True)
        thread.start()
        ready.wait(30)
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join(60)
            listener.close()

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        authorized = [Depends(self._authorize)]

        @app.exception_handler(HTTPException)
        async def refused(request: Request, error: HTTPException) -> JSONResponse:
            content = {"code": error.status_code, "message": str(error.detail)}
            return JSONResponse(content, status_code=error.status_code)

        app.add_api_route("/api/v1/token", self._give_token, methods=["POST"])
        for path, method, endpoint in (
            ("/org-unit/projects", "GET", self._projects),
            ("/workloads", "GET", self._list),
            ("/workloads/{workload_id}/events", "GET", self._events),
            ("/workloads/{workload_id}", "GET", self._get),
            ("/workloads/{kind}", "POST", self._create),
            ("/workloads/{kind}/{workload_id}", "GET", self._details),
            ("/workloads/{kind}/{workload_id}", "DELETE", self._delete),
            ("/workloads/{kind}/{workload_id}/suspend", "POST", self._suspend),
        ):
            app.add_api_route(f"/api/v1{path}", endpoint, methods=[method], dependencies=authorized)
        return app

    async def _give_token(self, request: Request) -> dict[str, Any]:
        asked = {name.lower(): value for name, value in (await request.json()).items()}
        if asked.get("granttype") != "app_token":
            raise HTTPException(400, "unknown grantType")
        if (asked.get("appid"), asked.get("appsecret")) != (self.application, self.secret):
            raise HTTPException(401, f"wrong credentials: {asked}")  # discloses too much, as servers may
        ends = time.time() + self.token_lifetime_s
        token = _token(ends)
        self.tokens[token] = ends
        return {"accessToken": token, "expiresIn": self.token_lifetime_s}

    async def _authorize(self, request: Request) -> None:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or self.tokens.get(token, 0) < time.time():
            raise HTTPException(401, f"the token {token} is not valid")

    async def _projects(self, request: Request) -> dict[str, Any]:
        filters = request.query_params.get("filterBy", "")
        found = not filters or filters == f"name=={self.project}"
        project = {"id": self.project_id, "name": self.project, "clusterId": self.cluster_id}
        return {"projects": [project] if found else []}

    async def _list(self, request: Request) -> dict[str, Any]:
        await self._refresh()
        limit, offset = (
            int(request.query_params.get(name, default)) for name, default in (("limit", 50), ("offset", 0))
        )
        if not 1 <= limit <= 500:
            raise HTTPException(400, "limit must be between 1 and 500")
        deleted = request.query_params.get("deleted") == "true"
        found = [
            listed(self, workload)
            for workload in self.workloads.values()
            if bool(workload.deleted_at) == deleted and workload.shown_at <= self.clock()
        ]
        for condition in filter(None, request.query_params.get("filterBy", "").split(",")):
            found = [workload for workload in found if _passes(workload, condition)]
        end = offset + min(limit, self.page_limit)
        page: dict[str, Any] = {"workloads": found[offset:end]}
        return {**page, "next": end} if end < len(found) else page

    async def _get(self, workload_id: str) -> dict[str, Any]:
        await self._refresh()
        workload = self._found(workload_id)
        if workload.shown_at > self.clock():
            raise HTTPException(404, f"no workload {workload_id} yet")
        return listed(self, workload)

    async def _details(self, kind: str, workload_id: str) -> dict[str, Any]:
        await self._refresh()
        return details(self._found(workload_id, kind))

    async def _events(self, workload_id: str) -> dict[str, Any]:
        return {"events": self._found(workload_id).events}

    async def _create(self, kind: str, request: Request) -> JSONResponse:
        if kind not in _KINDS:
            raise HTTPException(404, f"no such kind of workload: {kind}")
        asked = await request.json()
        self._check(asked)
        spec = asked["spec"]
        workload = StandInWorkload(
            request=asked,
            distributed=_KINDS[kind],
            cluster=self._gpus if (spec.get("compute") or {}).get("gpuDevicesRequest") else self._cpus,
            folder=self._folder / "pods",
            dwell_s=self.dwell_s,
            shown_at=self.clock() + self.hidden_s if self.hidden_s else 0,
        )
        self.workloads[workload.id] = workload
        workload.bringing_up = asyncio.create_task(workload.bring_up())
        return JSONResponse(details(workload), status_code=202)

    def _check(self, asked: dict[str, Any]) -> None:
        """Raise HTTPException for what Run:ai and Kubernetes refuse."""
        name, spec = asked.get("name", ""), asked.get("spec") or {}
        if not _NAME.fullmatch(name):
            raise HTTPException(400, f"'{name}' is no valid name (RFC 1123)")
        if (asked.get("projectId"), asked.get("clusterId")) != (self.project_id, self.cluster_id):
            raise HTTPException(404, "no such project or cluster")
        if not spec.get("image"):
            raise HTTPException(400, "the image name is mandatory")
        for pvc in (spec.get("storage") or {}).get("pvc") or ():
            if pvc.get("existingPvc") and pvc.get("claimName") not in self.claims:
                raise HTTPException(400, f"there is no claim '{pvc.get('claimName')}'")
        if any(workload.name == name and not workload.deleted_at for workload in self.workloads.values()):
            raise HTTPException(409, f"the workload {name} already exists")

    async def _suspend(self, kind: str, workload_id: str) -> JSONResponse:
        workload = self._found(workload_id, kind)
        if workload.phase in ("Completed", "Failed"):
            raise HTTPException(409, f"the workload is {workload.phase}")
        if workload.desired != "Stopped":
            await workload.suspend()
        return JSONResponse({"message": "Accepted"}, status_code=202)

    async def _delete(self, kind: str, workload_id: str) -> JSONResponse:
        await self._found(workload_id, kind).delete()
        return JSONResponse({"message": "Accepted"}, status_code=202)

    def _found(self, workload_id: str, kind: str | None = None) -> StandInWorkload:
        workload = self.workloads.get(workload_id)
        if workload is None or workload.deleted_at or kind not in (None, _kind(workload)):
            raise HTTPException(404, f"no workload {workload_id}")
        return workload

    async def _refresh(self) -> None:
        for workload in list(self.workloads.values()):
            await workload.refresh()


def _token(ends: float) -> str:
    """Return a token in the form of a JSON Web Token (RFC 7519), as some clients read its expiry there."""
    parts = ({"alg": "none"}, {"exp": int(ends), "jti": secrets.token_hex(16)})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{'.'.join(encoded)}.{secrets.token_urlsafe(24)}"


def _kind(workload: StandInWorkload) -> str:
    return "distributed" if workload.distributed else "trainings"


def _passes(workload: dict[str, Any], condition: str) -> bool:
    parsed = _FILTER.fullmatch(condition)
    if parsed is None or parsed[1] not in ("name", "projectId", "projectName", "phase", "createdAt"):
        raise HTTPException(400, f"filterBy '{condition}' is not understood")
    value, operator, wanted = str(workload[parsed[1]]), parsed[2], parsed[3]
    outcomes = {
        "==": value == wanted,
        "!=": value != wanted,
        "<=": value <= wanted,
        ">=": value >= wanted,
        "=@": wanted in value,
        "!@": wanted not in value,
        "=^": value.startswith(wanted),
        "=$": value.endswith(wanted),
    }
    return outcomes[operator]
