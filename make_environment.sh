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

install_uv() {
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 \
    "$1" -m pip install --quiet --upgrade "${@:2}" --requirement requirements-bootstrap.txt
}

# A Python without a pip gets one in an environment of its own, which takes twice as long.
install_uv_with_any_python() {
  for python in ${asked:+"$asked"} python3.11 python3 python3.13 python3.12; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      install_uv "$python" --target "$bootstrap" || exit
      return
    elif "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      "$python" -m venv "$bootstrap" && install_uv "$bootstrap/bin/python" || exit
      return
    fi
  done
  return 1
}

bootstrap_uv() {
  install_uv_with_any_python && return
  # Debian's python3 has neither pip nor venv until a package brings it.
  if command -v python3 >/dev/null && command -v dpkg-query >/dev/null && ./debian_packages.sh python3-venv; then
    install_uv_with_any_python && return
  fi
  echo "setup: no Python 3 with pip or venv is here: install one (on Debian and Ubuntu the package python3-venv)," \
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
uv=$bootstrap/bin/uv
[ -x "$uv" ] || uv=$folder/bin/uv # from the lock, as pip
"$uv" pip sync --quiet --python "$folder/bin/python" requirements.lock
"$uv" pip install --quiet --python "$folder/bin/python" --no-deps --editable .
