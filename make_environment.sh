#!/usr/bin/env bash
# Makes the environment that runs Airflow and steptime: make_environment.sh FOLDER [PYTHON]
#
# uv comes first, by whatever Python is there. It makes the environment with PYTHON (a command, a path or a
# version), else with Python 3.11, which it finds or fetches and which the trainer's packages want as well, else
# with the Python that is there, if the packages of requirements.lock fit it: 3.11, 3.12 or 3.13.
set -euo pipefail
cd "$(dirname "$0")"
folder=$1
asked=${2:-}
bootstrap=build/bootstrap
fitting='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

pip=("$bootstrap/bin/python" -m pip --disable-pip-version-check)
from_folder=(install --quiet --no-index --find-links "$bootstrap" --requirement requirements-bootstrap.txt)

bootstrap_uv() {
  for python in ${asked:+"$asked"} python3.11 python3 python3.13 python3.12; do
    "$python" -c 'import ensurepip, venv' 2>/dev/null || continue
    "$python" -m venv "$bootstrap"
    "${pip[@]}" download --quiet --dest "$bootstrap" --requirement requirements-bootstrap.txt
    "${pip[@]}" "${from_folder[@]}"
    return
  done
  echo "setup: no Python 3 with venv and pip is here: install one (on Debian and Ubuntu the package python3-venv)," \
    "or name yours: make PYTHON=/path/to/python3 setup" >&2
  exit 1
}

make_with() { "$bootstrap/bin/uv" venv --quiet --allow-existing --python "$1" "$folder"; }

if ! [ -x "$folder/bin/python" ]; then
  bootstrap_uv
  if [ -n "$asked" ]; then
    make_with "$asked"
  elif ! make_with "$(command -v python3.11 || echo 3.11)" 2>"$bootstrap/no-3.11.txt"; then
    if ! "$python" -c "$fitting"; then
      cat "$bootstrap/no-3.11.txt" >&2
      echo "setup: the packages need Python 3.11, 3.12 or 3.13, and $python is $("$python" --version):" \
        "install one of them, or name it: make PYTHON=/path/to/python3.12 setup" >&2
      exit 1
    fi
    make_with "$python"
    echo "setup: Python 3.11 is not here and cannot be fetched: Airflow runs with $("$python" --version)." \
      "The trainer's packages are locked for 3.11: to train on this machine install a python3.11" >&2
  fi
fi
# uv and pip are in the environment, too; uv takes them out of one that it has made.
uv=$bootstrap/bin/uv
[ -x "$uv" ] || uv=$folder/bin/uv
"$uv" pip sync --quiet --python "$folder/bin/python" requirements.lock
"$uv" pip install --quiet --python "$folder/bin/python" --no-deps --editable .
"$folder/bin/python" -m pip --version >/dev/null 2>&1 || "$folder/bin/python" -m ensurepip >/dev/null
[ -x "$folder/bin/uv" ] || "${pip[@]}" --python "$folder/bin/python" "${from_folder[@]}"
