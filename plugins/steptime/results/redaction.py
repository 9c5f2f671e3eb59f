"""Keeps secrets out of what is recorded and shown: what is secret by its name, or in an address."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from steptime.recipes.environment import PASSWORD_IN_ADDRESS, SENSITIVE_WORDS

REDACTED = "(not stored)"

_SECRET_NAME = re.compile(rf"{SENSITIVE_WORDS}(?:_|$)", re.IGNORECASE)
# One word of a shell, of pieces as `shlex.quote` makes them; a quoted piece may have line ends.
_ASSIGNMENT = re.compile(r"""(?P<name>\b[A-Za-z_]\w*)=(?P<value>(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\;&|])+)""")
_SHORTEST = 6
"""Characters of a secret that is looked for everywhere: a shorter one would take innocent text away."""


def redacted(document: Any) -> Any:
    """Return a JSON document with its secrets, at any depth and inside of texts, replaced by `(not stored)`.

    A value is secret by its name (`HF_TOKEN`, `WANDB_API_KEY`, …; `TOKENIZERS_PARALLELISM` is not), and then
    wherever else it is; so is the password in an address (`http://user:password@proxy`).
    """
    return _without(document, _longest_first(_secrets(document)))


def redacted_text(text: str, *environments: Mapping[str, str]) -> str:
    """Return a text such as a job script without its own secrets and those of these environments."""
    return _without_in_text(text, _longest_first(_secrets(list(environments))))


def _secrets(document: Any) -> Iterator[str]:
    """The values that bear the name of a secret."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            if _is_secret(name, value):
                yield value
            else:
                yield from _secrets(value)
    elif isinstance(document, list):
        for value in document:
            yield from _secrets(value)


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and _SECRET_NAME.search(name) is not None


def _longest_first(secrets: Iterator[str]) -> list[str]:
    """One may be part of another. In a script they are as the shell reads them."""
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in (secret, shlex.quote(secret))}
    return sorted(forms - {REDACTED, shlex.quote(REDACTED)}, key=len, reverse=True)


def _without(document: Any, secrets: list[str]) -> Any:
    if isinstance(document, Mapping):
        return {
            name: REDACTED if _is_secret(name, value) else _without(value, secrets)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [_without(value, secrets) for value in document]
    return _without_in_text(document, secrets) if isinstance(document, str) else document


def _without_in_text(text: str, secrets: list[str]) -> str:
    text = _ASSIGNMENT.sub(_without_secret, text)
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return PASSWORD_IN_ADDRESS.sub(rf"\g<before>{REDACTED}", text)


def _without_secret(assignment: re.Match[str]) -> str:
    """An assignment of the script; one that refers to another variable (`"$HF_TOKEN"`) holds no secret."""
    name, value = assignment["name"], assignment["value"]
    if not _SECRET_NAME.search(name) or value.strip("'\"").startswith("$"):
        return assignment[0]
    return f"{name}='{REDACTED}'"
