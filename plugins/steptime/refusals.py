"""Turn pydantic's validation errors into phrases such as `has to be a whole number`."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import AfterValidator

_HAS_TO = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "be a number"),
    "finite_number": "be a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "be true or false"),
    "string_type": "be text",
    "string_too_short": "be some text",
    "string_too_long": "be text of {max_length} characters at most",
    **dict.fromkeys(("literal_error", "enum"), "be {expected}"),
    "greater_than": "be above {gt}",
    "greater_than_equal": "be at least {ge}",
    "less_than": "be below {lt}",
    "less_than_equal": "be at most {le}",
    **dict.fromkeys(("tuple_type", "list_type", "set_type"), "be a list, as in [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "mapping_type"), "be a mapping, as in {{a: b}}"),
    "too_short": "have entries, {min_length} or more",
}
"""What a value has to be, by the type of pydantic's error; names in braces are those of its limits."""


def describe_validation_error(problem: Mapping[str, Any]) -> str:
    """Describe one of pydantic's `errors()` as a predicate about the value: `has to be a whole number`.

    For types of errors that are not in `_HAS_TO`, return pydantic's own message.
    """
    kind = problem["type"]
    if kind not in _HAS_TO:
        return str(problem["msg"]).removeprefix("Value error, ").removesuffix(".")
    limits = {
        name: f"{limit:g}" if isinstance(limit, float) else limit
        for name, limit in problem.get("ctx", {}).items()
    }
    return f"has to {_HAS_TO[kind].format_map(limits)}"


def matching(pattern: str, words: str) -> AfterValidator:
    """Return a validator that refuses text that does not match `pattern`: it `has to be {words}`."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII) is None:
            raise ValueError(f"has to be {words}")
        return text

    return AfterValidator(check)
