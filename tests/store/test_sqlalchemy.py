"""The store works with the SQLAlchemy that Airflow 3.1 is released with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

UV = str(Path(sys.executable).with_name("uv"))
RELEASED = "sqlalchemy==1.4.54"


@pytest.mark.service
@pytest.mark.exhaustive
def test_the_store_works_with_sqlalchemy_1(tmp_path):
    installing = [UV, "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), RELEASED]
    subprocess.run(installing, check=True)
    tests = Path(__file__).with_name("test_store.py")
    options = ["-q", "-W", "ignore", "-m", "not service and not long", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tests)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
