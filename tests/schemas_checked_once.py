"""Airflow holds the schema of each param to that of schemas whenever it looks at the param's value.

That is two fifths of what a DAG run in one process computes, for some hundred schemas that are the same each
time. Here each is looked at once in a process; one that is wrong is refused as before.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema.validators import Draft202012Validator


@pytest.fixture(scope="session", autouse=True)
def schemas_checked_once() -> Iterator[None]:
    """Let a schema that was found right be right from then on."""
    check, right = Draft202012Validator.check_schema, set[str]()

    def check_once(schema: Any, *options: Any, **named: Any) -> None:
        text = json.dumps(schema, sort_keys=True, default=repr)
        if text not in right:
            check(schema, *options, **named)
            right.add(text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Draft202012Validator, "check_schema", check_once)
        yield
