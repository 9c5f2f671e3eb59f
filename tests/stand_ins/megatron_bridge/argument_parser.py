"""The argument parser of a release of Megatron-Bridge, rebuilt from what was recorded of its source."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "data" / "megatron_bridge" / "parsers.json"


def recorded() -> dict[str, Any]:
    """Return by release: tag, commit, file, and the arguments with upstream's settings for each."""
    parsers: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return parsers


def parser_of(release: str) -> argparse.ArgumentParser:
    """Return a parser that accepts and refuses what that release's parser does."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, told in recorded()[release]["arguments"].items():
        kind = told.get("type")
        parser.add_argument(name, **told | ({} if kind is None else {"type": _type(kind)}))
    return parser


def _type(kind: str) -> Callable[[str], Any]:
    """Return the function by which upstream converts a value; its lambdas accept None or a whole number."""
    if kind.startswith("lambda"):
        return lambda text: None if text == "None" else int(text)
    known: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "lower_str": str.lower}
    return known.get(kind, str)
