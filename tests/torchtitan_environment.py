"""The real torchtitan on CPUs: an environment of pinned packages for each release, kept below `build/`."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ON_CPU = ROOT / "tests" / "torchtitan_on_cpu"


def torchtitan_python(version):
    """Return the interpreter of an environment with this release of torchtitan; it is made if it is missing.

    What lets torchtitan train on a CPU is in the environment as well, and acts only in its own ranks.
    """
    lock = ROOT / "tests" / "data" / "torchtitan" / f"requirements-{version}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:10]
    target = ROOT / "build" / f"torchtitan-{version}-{digest}"
    build = ROOT / "plugins" / "steptime" / "staging" / "build_venv.py"
    python = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    assert python is not None, "the packages are locked for Python 3.11, which is not here"
    target.parent.mkdir(exist_ok=True)
    subprocess.run(
        [python, str(build), str(target), str(lock), str(ROOT / "requirements-bootstrap.txt")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
        check=True,
    )
    [packages] = (target / "lib").glob("python3*/site-packages")
    shutil.copy(ON_CPU / "torchtitan_on_cpu.py", packages)
    (packages / "torchtitan_on_cpu.pth").write_text("import torchtitan_on_cpu\n")
    return target / "bin" / "python"


def make_assets(python, folder):
    """Write text and a tokenizer into a folder, in the form that torchtitan's debug models expect."""
    subprocess.run([str(python), str(ON_CPU / "make_assets.py"), str(folder)], check=True)
