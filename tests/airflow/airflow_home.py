"""An Airflow of the tests' own: imported before Airflow, which reads its home when it is imported."""

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

if "airflow" not in sys.modules:
    home = Path(tempfile.mkdtemp(prefix="steptime-tests-airflow-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    # `dag.test()` stores every DAG there anew, in half a second each: only those that tests run to their end.
    (home / "dags").mkdir()
    (home / "dags" / "steptime_llama3.1-25.04.py").write_text(
        "from steptime.airflow.dag_builder import training_dag\n"
        'dag = training_dag("steptime_llama3.1-25.04", workload="llama3.1")\n'
    )
    os.environ["AIRFLOW_HOME"] = str(home)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(home / "dags")

with warnings.catch_warnings():
    # Airflow's own dependencies cause warnings; tests must fail only for warnings of ours.
    warnings.simplefilter("ignore")
    import airflow.sdk
    import airflow.triggers.base  # noqa: F401
