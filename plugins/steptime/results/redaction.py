"""Keeps secrets out of what is stored: values of variables whose names tell that they are secret."""

import re

from steptime.results.models import Result

REDACTED = "(not stored)"

_WORDS = r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY)"
_SECRET_NAME = re.compile(rf"(?:^|_){_WORDS}(?:_|$)", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"""(?P<name>\b[A-Za-z_]\w*)=(?P<value>'[^'\n]*'|"[^"\n]*"|[^\s'"$;&|]\S*)""")


def redacted(result: Result) -> Result:
    """The result with secrets replaced by `(not stored)`, in the run's environment and in the job script.

    A variable is secret by its name (`HF_TOKEN`, `WANDB_API_KEY`, …); `TOKENIZERS_PARALLELISM` is not.
    """
    environment, script = result.run.environment, result.provenance.script
    secrets = {value for name, value in environment.items() if value and _SECRET_NAME.search(name)}
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        script = script.replace(secret, REDACTED)
    script = _ASSIGNMENT.sub(_without_secret, script)
    kept = {name: REDACTED if value in secrets else value for name, value in environment.items()}
    return result.model_copy(
        update={
            "run": result.run.model_copy(update={"environment": kept}),
            "provenance": result.provenance.model_copy(update={"script": script}),
        }
    )


def _without_secret(assignment: re.Match[str]) -> str:
    """An assignment of the script; one that refers to another variable (`"$HF_TOKEN"`) holds no secret."""
    name, value = assignment["name"], assignment["value"]
    if not _SECRET_NAME.search(name) or value.strip("'\"").startswith("$"):
        return assignment[0]
    return f"{name}='{REDACTED}'"
