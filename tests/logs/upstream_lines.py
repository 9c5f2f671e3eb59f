"""Compare `lines_by_release.yaml` with the sources of the releases.

    python tests/logs/upstream_lines.py check NVIDIA/NeMo=NeMo.git NVIDIA/NeMo@2.7.3=venv/…/site-packages …
    python tests/logs/upstream_lines.py list NeMo.git v2.2.1 nemo/lightning/io/pl.py checkpoint

`check` wants a git folder of each repository, or for a release without a tag there the folder in which it is
installed; it says which words a release's file does not have, and which sources it lacks. `list` gives the
strings of one file in which a regular expression is found, with `{expression}` where a value goes.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_DATA = Path(__file__).with_name("lines_by_release.yaml")


def entries(part: str) -> list[dict[str, Any]]:
    """The `lines` of the releases, their `sequences`, or what `public` logs taught."""
    listed: list[dict[str, Any]] = yaml.safe_load(_DATA.read_text())[part]
    return listed


def differences(folders: dict[str, Path]) -> Iterator[str]:
    """A sentence for each line that the source of a release does not bear out."""
    for entry in entries("lines"):
        for revision in entry["revisions"]:
            release = f"{entry['repository']}@{revision}"
            folder = folders.get(release, folders.get(entry["repository"]))
            try:
                if folder is None:
                    raise OSError("no sources were given")
                if not any(entry["words"] in text for _, text in strings(folder, revision, entry["file"])):
                    yield f"{release} {entry['file']}: no string has the words '{entry['words']}'"
            except OSError as error:
                yield f"{release} {entry['file']}: {error}"


def strings(folder: Path, revision: str, file: str) -> Iterator[tuple[int, str]]:
    """All strings of a Python file with their lines. Raises OSError where there is no such file."""
    for node in ast.walk(ast.parse(_source(folder, revision, file))):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            yield node.lineno, _template(node)


def _source(folder: Path, revision: str, file: str) -> str:
    if not any((folder / name).exists() for name in ("HEAD", ".git")):
        return (folder / file).read_text()
    command = ["git", "-C", str(folder), "show", f"{revision}:{file}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        raise OSError(shown.stderr.strip())
    return shown.stdout


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_template, parts))
        case ast.FormattedValue(value=expression, format_spec=form):
            return "{" + ast.unparse(expression) + (f":{_template(form)}" if form else "") + "}"
    return ""


def main(arguments: list[str]) -> int:
    """Run one of the commands; 1 where the sources differ."""
    match arguments:
        case ["check", *named]:
            folders = {name: Path(folder) for name, _, folder in (each.partition("=") for each in named)}
            told = list(differences(folders))
        case ["list", folder, revision, file, pattern]:
            found = sorted(set(strings(Path(folder), revision, file)))
            sys.stdout.writelines(f"{at}: {text!r}\n" for at, text in found if re.search(pattern, text))
            return 0
        case _:
            sys.exit(__doc__)
    sys.stdout.writelines(f"{each}\n" for each in told)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
