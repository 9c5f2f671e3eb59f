"""The parser of a release of Megatron-Bridge, made anew from what was recorded of its source."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "data" / "megatron_bridge" / "parsers.json"


def recorded() -> dict[str, Any]:
    """By release: tag, commit, file, and the arguments with what upstream says of them."""
    parsers: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return parsers


def parser_of(release: str) -> argparse.ArgumentParser:
    """A parser that takes and refuses what that release's does."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, told in recorded()[release]["arguments"].items():
        kind = told.get("type")
        parser.add_argument(name, **told | ({} if kind is None else {"type": _type(kind)}))
    return parser


def _type(kind: str) -> Callable[[str], Any]:
    """What upstream converts a value by; of its lambdas, which take None or a whole number."""
    if kind.startswith("lambda"):
        return lambda text: None if text == "None" else int(text)
    known: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "lower_str": str.lower}
    return known.get(kind, str)
