"""steptime runs inside other people's processes and changes nothing of other packages there.

Forbidden changes are found in the syntax of every module of `plugins/` and `trainer/`.
"""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"steptime", "trainer"}
ALLOWED = {
    "trainer/cpu/cpu_as_cuda.py": "NeMo cannot train without a GPU otherwise; CPU plans alone use it",
    "trainer/bridge/on_cpu.py": "nor can Megatron-Bridge",
    **{
        f"plugins/steptime/recipes/importing/recorder/{name}.py": "a program of its own, in a sandbox"
        for name in ("describe", "nemo_run", "record")
    },
    "trainer/environment.py": "no garbage collection while the trainer imports NeMo",
}
_HOOKS = ("airflow.listeners", "airflow.policies", "airflow._shared")
_DOCUMENTED = ("os._exit", "sys._current_frames")
"""Public functions of Python whose names start with an underscore."""
_FORBIDDEN = ("gc.", "sys.meta_path", "sys.path_hooks", "sys.modules.update", "sys.modules.pop")
_OUR_OWN = ("os.environ", "sys.argv")
"""Parts of our own process that are meant to be changed."""


def violations(source):
    """Return what a module does to other packages, each as `line: what`."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = [
        (node, path, alias.asname or alias.name.partition(".")[0])
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.ImportFrom) and node.level)
        for alias in node.names
        if (path := f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name)
        and path.partition(".")[0] not in OURS
    ]
    foreign = {name for _, _, name in imported}
    found = [
        (node, f"imports {path}")
        for node, path, _ in imported
        if _is_private(path) or path.startswith(_HOOKS)
    ]
    for node in nodes:
        found += [
            (node, f"changes {ast.unparse(target)}")
            for target in _targets(node)
            if _is_attribute(target, foreign)
        ]
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith(_FORBIDDEN) or (
            _root(node) in foreign and _is_private(text) and text not in _DOCUMENTED
        ):
            found.append((node, f"uses {text}"))
    return sorted({f"{node.lineno}: {what}" for node, what in found})


def _targets(node):
    """Return what a statement assigns to, deletes, or changes by setattr."""
    match node:
        case ast.Assign() | ast.Delete():
            return node.targets
        case ast.AugAssign() | ast.AnnAssign():
            return [node.target]
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]):
            return [ast.Attribute(target, "x")]
    return []


def _is_attribute(target, foreign):
    """Return whether this is an attribute of something imported, or an item of one."""
    owner = target.value if isinstance(target, ast.Subscript) else target
    return isinstance(owner, ast.Attribute) and _root(owner) in foreign and ast.unparse(owner) not in _OUR_OWN


def _root(node):
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_private(path):
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


@pytest.mark.parametrize("folder", ["plugins", "trainer"])
def test_no_module_changes_another_package(folder):
    found = {
        path.relative_to(ROOT).as_posix(): violations(path.read_text(encoding="utf-8"))
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(found) > 20
    assert {path: what for path, what in found.items() if what and path not in ALLOWED} == {}


def test_nothing_is_registered_as_a_cluster_policy_or_listener():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["entry-points"]) == {"apache_airflow_provider", "airflow.plugins"}

    from steptime.airflow.plugin import SteptimePlugin

    assert SteptimePlugin.listeners == []
    assert SteptimePlugin.fastapi_root_middlewares == []


@pytest.mark.parametrize(
    "line",
    [
        "import sys\nsys.meta_path.insert(0, None)",
        "import sys\nsys.modules['torch'] = None",
        "import sys\nsys.modules.update(torch=None)",
        "import gc\ngc.freeze()",
        "from airflow.x import Watched\nWatched._serve = None",
        "import torch\ntorch.compile = None",
        "import torch\nsetattr(torch, 'compile', None)",
        "import torch\ntorch._C.x()",
        "from airflow.listeners import hookimpl",
        "from airflow.sdk import _private",
        "from airflow._shared.state import TaskScope",
    ],
)
def test_each_kind_is_found(line):
    assert violations(line)
