"""The API that tasks and triggers call, in the Airflow of `steptime up`: with fewer of its versions."""

from airflow.api_fastapi.execution_api import versions
from cadwyn import HeadVersion, Version, VersionBundle

_KNOWN_NEWEST = "2026-06-30"
_KEPT = 2
"""Of the newest: endpoints that only older versions have come back by the changes of the second."""


def keep_newest_versions() -> None:
    """Leave versions out that only workers of an older Airflow ask for: here all are of one Airflow.

    The api-server makes all nine at the first task, and the triggerer at the first wait, for 3.6 s of CPU
    each, while the task waits; three take 1.3. An Airflow whose newest version is another one keeps all.

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
