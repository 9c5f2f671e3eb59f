"""An Airflow of the tests' own: imported before Airflow, which reads its home when it is imported."""

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

if "airflow" not in sys.modules:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="steptime-tests-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).parents[2] / "dags")

with warnings.catch_warnings():
    # Airflow's own imports warn of what Airflow itself uses; tests fail for warnings of ours.
    warnings.simplefilter("ignore")
    import airflow.sdk
    import airflow.triggers.base  # noqa: F401
