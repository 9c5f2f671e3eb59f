"""The cache of the Hugging Face hub on a cluster, from which jobs read model configurations and tokenizers.

Jobs run offline: hundreds of ranks that ask the hub at once hit its rate limits, and many clusters cannot
reach it. steptime never handles a token.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from steptime.errors import UserError, one_line
from steptime.recipes.models import Run

_PATTERNS = ("*.json", "*.txt", "*.model", "*.py")
"""All files but the weights: models with code of their own need the Python files to load a configuration."""


def hub_cache(run: Run, environment: Mapping[str, str], root: str) -> str | None:
    """Return the folder of the Hugging Face hub's cache that the ranks of a run read.

    Args:
        run: what to train.
        environment: the variables of the cluster's file.
        root: the cluster's `work_dir`.

    Returns:
        None if the run needs nothing from the hub, or if its ranks contact the hub (`HF_HUB_OFFLINE: "0"` in
        the cluster's or the run's variables).

    Raises:
        UserError: the folder is not an absolute path.
    """
    variables = {**environment, **run.environment}
    if variables.get("HF_HUB_OFFLINE") == "0" or not run.recipe.hub_files:
        return None
    home = variables.get("HF_HOME", str(PurePosixPath(root, "huggingface")))
    cache = variables.get("HF_HUB_CACHE", str(PurePosixPath(home, "hub")))
    if not PurePosixPath(cache).is_absolute():
        raise UserError(
            f"the cache of the Hugging Face hub is '{one_line(cache)}': "
            "give HF_HUB_CACHE or HF_HOME an absolute path."
        )
    return cache


def hub_environment(cache: str | None) -> dict[str, str]:
    """Return the variables that make a job read the Hugging Face hub's cache and never contact the hub.

    Empty if `cache` is None.
    """
    if cache is None:
        return {}
    return {"HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def fetch_command(repository: str, cache: str) -> str:
    """Return a shell command that downloads a Hugging Face repository into `cache`, without its weights."""
    wanted, folder = json.dumps(_PATTERNS), json.dumps(cache)
    arguments = f"{json.dumps(repository)}, allow_patterns={wanted}, cache_dir={folder}"
    code = f"import huggingface_hub as hub; hub.snapshot_download({arguments})"
    return shlex.join(["python3", "-c", code])
