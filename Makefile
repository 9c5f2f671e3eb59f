# steptime: `make demo` and `make test` set up everything they need; `make help` lists the rest.
SHELL := bash
.DEFAULT_GOAL := help
# A version, a name or a path: what the environment is made with. Else 3.11 where it can be had.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
export STEPTIME_HOME ?= $(CURDIR)/.steptime
PYTEST_FLAGS ?=
# The rest trains, runs a Slurm or drives a browser: three files at a time, each with services of its own,
# but for the end-to-end files, which share theirs (tests/conftest.py).
QUICK := not trainer and not end_to_end and not browser and not slurm and not drill
UNIT := $(QUICK) and not service
# Many of the quick tests wait more than they compute: three at a time keep two cores busy.
SIDE_BY_SIDE := -n 3 --dist worksteal

.PHONY: help setup demo check test drills mutants screenshots benchmarks lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.complete ## create the environment that runs Airflow and steptime

$(VENV)/.complete: requirements.lock requirements-bootstrap.txt pyproject.toml
	@echo "setup: installing Airflow and steptime into $(VENV)"
	@./make_environment.sh $(VENV) $(PYTHON)
	@touch $@

demo: setup ## train a tiny Llama 3.1 at 1 and 2 ranks through Airflow, and show the results
	@$(BIN)/steptime demo

check: setup ## lint, types and unit tests (about 3 minutes)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "$(UNIT)" $(PYTEST_FLAGS)

test: setup ## every test, with real training, a running Airflow and a browser (half an hour on two cores)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "$(QUICK)" $(PYTEST_FLAGS)
	$(BIN)/pytest -n 3 --dist loadfile -m "not ($(QUICK))" $(PYTEST_FLAGS)

drills: setup ## break things on purpose: SEEDS=100 draws that many faults, SEED=17 repeats one, AT_ONCE=2 two side by side
	DRILL_TABLE=$(STEPTIME_HOME)/drills.md DRILL_SEEDS=$(if $(SEED),$(SEED),1-$(or $(SEEDS),100)) $(BIN)/pytest tests/drills -m drill $(if $(AT_ONCE),-n $(AT_ONCE) --dist worksteal) $(PYTEST_FLAGS)

mutants: setup ## change the code in small ways and see whether the tests notice: ROOM=logs for one room, SAMPLE=100 changes of each, SEED=1
	@$(BIN)/python tests/mutants.py $(if $(ROOM),--room "$(ROOM)") $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

screenshots: setup ## take the pictures of the README from the running demo
	$(BIN)/python docs/take_screenshots.py

lock: setup ## resolve the packages of the Airflow environment and of docker/Dockerfile anew
	$(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 --extra celery --group dev --generate-hashes -o requirements.lock
	cp requirements.lock docker/requirements.lock # uv keeps the versions that it finds in its output file
	$(BIN)/uv pip compile --quiet pyproject.toml --extra team --generate-hashes -o docker/requirements.lock

clean: ## stop Airflow and Slurm, and delete the environment and all state
	@test ! -x $(BIN)/steptime || { $(BIN)/steptime down && $(BIN)/steptime slurm down; }
	rm -rf $(VENV) build/bootstrap $(STEPTIME_HOME)
