"""What requests to the pages' server may contain, and the answer to those that contain something else."""

import unicodedata
from typing import Annotated

from fastapi import HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, StringConstraints

from steptime.errors import one_line
from steptime.refusals import describe_validation_error

_END_OF_TIME = 253_370_764_800.0
"""Beginning of the year 9999 in Unix time: Python's dates end with it."""
_JOINERS = "\u200c\u200d"
"""Invisible characters that some scripts and emoji need."""
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode's categories of control, format, private and unassigned characters."""


def _visible(text: str) -> str:
    """Return the text; raise ValueError for control characters and those that hide or reorder text."""
    hidden = [
        char
        for char in text
        if unicodedata.category(char) in _HIDDEN and char not in _JOINERS and char not in "\n\r\t"
    ]
    if hidden:
        raise ValueError(f"must not have the invisible character U+{ord(hidden[0]):04X}")
    return text


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not have a NUL character")
    return text


Since = Annotated[float, Query(ge=0, le=_END_OF_TIME, allow_inf_nan=False)]
"""Unix time in seconds, from 1970 to the year 9999."""
IncidentId = Annotated[int, Path(ge=0, le=2**31 - 1)]
"""Number of an incident; a column of PostgreSQL's type integer has no larger one."""
Text = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_without_nul)]
"""Text to look up; PostgreSQL takes none with a NUL character."""
Note = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=500),
    AfterValidator(_visible),
]
"""A note that people read: 1 to 500 visible characters."""


def refuse_nul(request: Request) -> None:
    """Raise HTTPException 422 for a NUL character in a value of the request: PostgreSQL takes none."""
    pairs = (*request.path_params.items(), *request.query_params.multi_items())
    for name, value in pairs:
        if "\0" in str(value):
            raise HTTPException(status_code=422, detail=f"{one_line(name)} must not have a NUL character")


def explain_refusal(_: Request, error: Exception) -> JSONResponse:
    """Answer with status 422 and a sentence for each field that does not fit.

    FastAPI's own answer repeats the values, and fails if JSON cannot have them (NaN, a lone surrogate).
    """
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    sentences = [
        f"{one_line('.'.join(str(part) for part in problem['loc'][1:]) or 'the body')} "
        f"{one_line(describe_validation_error(problem), at_most=200)}"
        for problem in problems[:10]
    ]
    return JSONResponse({"detail": "; ".join(sentences)}, status_code=422)
