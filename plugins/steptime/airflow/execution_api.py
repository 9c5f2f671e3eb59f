"""The API that tasks and triggers call, in the Airflow of `steptime up`: with fewer of its versions."""

from typing import Any

from airflow.api_fastapi import app
from airflow.api_fastapi.execution_api import versions
from cadwyn import Cadwyn, HeadVersion, Version, VersionBundle

from steptime.large_imports import uncollected

_KNOWN_NEWEST = "2026-06-30"
_KEPT = 2
"""Of the newest: endpoints that only older versions have come back by the changes of the second."""


def keep_newest_versions() -> None:
    """Leave versions out that only workers of an older Airflow ask for: here all are of one Airflow.

    The api-server and the triggerer make all nine in 3.6 s of CPU each, three in 1.3. An Airflow whose newest
    version is another one keeps all.

    Raises what a cadwyn raises with which that cannot be done; nothing is changed then.
    """
    whole = versions.bundle
    newest, ground = whole.versions[:_KEPT], whole.versions[_KEPT]
    if newest[0].value != _KNOWN_NEWEST:
        return
    _bind_changes(whole, to=None)  # a change belongs to one bundle
    try:
        versions.bundle = VersionBundle(HeadVersion(), *newest, Version(ground.value))
    except BaseException:
        _bind_changes(whole, to=whole)
        raise


def _bind_changes(bundle: VersionBundle, *, to: VersionBundle | None) -> None:
    for version in bundle.versions:
        for change in version.changes:
            change._bound_version_bundle = to


def make_versions_at_start() -> None:
    """Let the api-server make the versions when it starts, not at the first task, which waits for that.

    Raises AttributeError, and changes nothing, if this Airflow or cadwyn has other names for that.
    """
    module: Any = app
    create, initialize = module.create_app, Cadwyn._cadwyn_initialize

    def create_whole(*arguments: Any, **named: Any) -> Any:
        with uncollected():
            whole = create(*arguments, **named)
            for route in whole.routes:
                if isinstance(versioned := getattr(route, "app", None), Cadwyn):
                    initialize(versioned)
        return whole

    module.create_app = create_whole
