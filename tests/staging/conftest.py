"""A package index in a folder, so that real pip and real uv build a real environment without network."""

import base64
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from steptime.clusters.local.cluster import LocalCluster, LocalConfig

RUNS_THE_REAL_UV = """
import os, sys
def main():
    os.execv({uv!r}, [{uv!r}, *sys.argv[1:]])
"""


@pytest.fixture
def make_wheel(tmp_path):
    """Return a function that puts a wheel of one module into the index, if asked with a command."""

    def make(name, version, code="", *, command=False, needs=""):
        folder = tmp_path / "index"
        folder.mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {
            f"{name}.py": f"__version__ = {version!r}\n{code}",
            f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if command:
            files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
        record = "".join(
            f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items()
        )
        files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        return wheel

    return make


def _digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def uv():
    """Return the uv of this environment, or the one on the PATH."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.fail("uv is missing: pip install -r requirements-bootstrap.txt")
    return uv


@pytest.fixture
def index(tmp_path, make_wheel, uv, monkeypatch):
    """Return a folder of wheels (uv itself, PyTorch, one more), the only index that pip and uv use."""
    make_wheel("uv", "0.1", RUNS_THE_REAL_UV.format(uv=uv), command=True)
    make_wheel("torch", "2.13.0+cpu")
    make_wheel("numbers_of_nemo", "1.0")
    for name in ("PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "PIP_NO_INDEX": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_FIND_LINKS": str(tmp_path / "index"),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "index"


@pytest.fixture
def lock(tmp_path):
    """Return the lock file of the environment."""
    path = tmp_path / "lock.txt"
    path.write_text("# pinned\nnumbers_of_nemo==1.0\ntorch==2.13.0+cpu\n    # via nemo\n")
    return path


@pytest.fixture
def bootstrap(tmp_path):
    """Return the file that pins the installer."""
    path = tmp_path / "bootstrap.txt"
    path.write_text("uv==0.1\n")
    return path


@pytest.fixture
def config(tmp_path):
    """Return a local cluster in this test's folder, with this Python."""
    return LocalConfig.model_validate(
        {
            "name": "here",
            "kind": "local",
            "gpu_type": "cpu",
            "work_dir": str(tmp_path / "work"),
            "python": sys.executable,
        }
    )


@pytest.fixture
def cluster(config):
    """Return the cluster of `config`."""
    return LocalCluster(config)
