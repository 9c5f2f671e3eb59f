"""The forms of Run:ai's answers, as far as steptime reads them; names and types are those of its swagger.

Only an answer in its form counts: others come from a proxy, or were cut off. Fields that steptime does not
read are ignored, and so may be new or missing.
"""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr, ValidationError
from pydantic.alias_generators import to_camel

from steptime.errors import one_line


def _unix_time(written: Any) -> float | None:
    """Convert a time as the API writes it, `2026-11-21T06:00:00.123Z`, to Unix seconds.

    A time without a zone counts as UTC. None if it is None or empty. Raises ValueError for anything else.
    """
    if not isinstance(written, str | None):
        raise ValueError("should be a time")
    if not written:
        return None
    time = datetime.fromisoformat(written)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


_Text = Annotated[StrictStr, Field(min_length=1)]
_Time = Annotated[float | None, BeforeValidator(_unix_time)]


class _AnswerForm(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)


class Empty(_AnswerForm):
    """An answer whose content is not read."""


class Refusal(_AnswerForm):
    """`Error`: the form of all answers that are no success."""

    code: StrictInt
    message: StrictStr
    details: StrictStr | None = None


class Token(_AnswerForm):
    """`TokenResponse`."""

    access_token: str = Field(pattern=r"^[\x21-\x7e]+$")
    expires_in: Any = None


class Project(_AnswerForm):
    """`Project`: the Run:ai project in which workloads are created."""

    id: _Text
    name: _Text
    cluster_id: _Text


class Projects(_AnswerForm):
    """`GetProjects200Response`."""

    projects: tuple[Project, ...]


class WorkloadCondition(_AnswerForm):
    """`Condition1`."""

    message: StrictStr | None = None


class RunaiWorkload(_AnswerForm):
    """`Workload`: a workload in lists, and by its id. Times are Unix times in seconds."""

    id: _Text
    name: _Text
    phase: _Text
    created_at: _Time = None
    deleted_at: _Time = None
    completed_at: _Time = None
    phase_updated_at: _Time = None
    phase_message: StrictStr | None = None
    conditions: tuple[WorkloadCondition, ...] | None = None
    distributed_framework: StrictStr | None = None


class Workloads(_AnswerForm):
    """`GetWorkloads200Response`: one page."""

    workloads: tuple[RunaiWorkload, ...]
    next: StrictInt | None = None


class Annotation(_AnswerForm):
    """`Annotation`."""

    name: StrictStr
    value: StrictStr | None = None


class Spec(_AnswerForm):
    """`TrainingSpecSpec` and `DistributedSpecSpec`."""

    annotations: tuple[Annotation, ...] | None = None


class Details(_AnswerForm):
    """`Training1` and `DistributedWorkload`: a workload of one kind, and the answer to its creation."""

    workload_id: _Text
    name: _Text
    created_at: _Time = None
    spec: Spec | None = None


class WorkloadEvent(_AnswerForm):
    """`Event2`."""

    type: StrictStr
    message: StrictStr
    reason: StrictStr | None = None


class Events(_AnswerForm):
    """`GetWorkloadEvents200Response`."""

    events: tuple[WorkloadEvent | None, ...]


Form = TypeVar("Form", bound=_AnswerForm)


class OtherForm(Exception):
    """An answer is not in its form; the text says where."""


def parse(content: bytes, form: type[Form]) -> Form:
    """Return the content of an answer. Raises OtherForm unless it is JSON in that form."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise OtherForm("no JSON") from None
    if not isinstance(found, dict):
        raise OtherForm("no JSON object")
    try:
        return form.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise OtherForm(f"{one_line('.'.join(map(str, first['loc'])))}: {first['msg']}") from None
