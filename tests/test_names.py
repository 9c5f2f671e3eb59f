"""A name that people search for leads to one class."""

import ast
from collections import defaultdict
from pathlib import Path

import steptime

PACKAGE = Path(steptime.__file__).parent


def test_no_two_classes_share_a_name():
    """A class that derives from its namesake, as `Run` does with the trainer's, is the same concept."""
    modules = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_symlink() or "recorder" in path.parts or "shipped" in path.parts:
            continue  # the trainer's spec.py; a program of its own in a sandbox; the trainer in a wheel
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
