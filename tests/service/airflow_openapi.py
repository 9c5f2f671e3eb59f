"""Hold requests to Airflow's REST API, and the answers of stand-ins, to Airflow's OpenAPI document."""

import functools
import json
import re
from importlib import metadata
from pathlib import Path

import jsonschema
import yaml

_PREFIX = "/api/v2/"
_DOCUMENT = "airflow/api_fastapi/core_api/openapi/v2-rest-api-generated.yaml"


def check(method, path, query, body, status, answer):
    """Fail if Airflow would refuse a request's parameters, or would not answer like this.

    An answer may leave out fields: stand-ins give those that are read.
    """
    if not path.startswith(_PREFIX):
        return
    request = f"{method} {path}"
    operation = next((paths[method.lower()] for form, paths in _paths() if form.fullmatch(path)), None)
    assert operation is not None, f"Airflow has no {request}"
    known = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}
    assert query <= known, f"{request} has no parameter {query - known}"
    if body is not None:
        _validate(operation["requestBody"], body, _document()["components"], request)
    if 200 <= status < 300:
        assert str(status) in operation["responses"], f"{request} never answers {status}"
        _validate(operation["responses"][str(status)], answer, _partial(), f"the answer to {request}")


def _validate(part, value, components, what):
    schema = {**part["content"]["application/json"]["schema"], "components": components}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value)
    assert not (problems := [error.message for error in errors]), f"{what}: {problems}"


@functools.cache
def _document():
    file = metadata.distribution("apache-airflow-core").locate_file(_DOCUMENT)
    return yaml.load(Path(str(file)).read_text(encoding="utf-8"), yaml.CSafeLoader)


@functools.cache
def _paths():
    """Return a pattern and the operations of each path."""
    paths = _document()["paths"].items()
    return [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operations) for path, operations in paths]


@functools.cache
def _partial():
    """Return the components with no field required, and none beyond those that are described."""
    components = json.loads(json.dumps(_document()["components"]))
    for schema in components["schemas"].values():
        schema.pop("required", None)
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return components
