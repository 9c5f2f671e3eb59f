# steptime: `make demo` and `make test` set up everything they need; `make help` lists the rest.
SHELL := bash
.DEFAULT_GOAL := help
# A version, a name or a path: what the environment is made with. Else 3.11 where it can be had.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
export STEPTIME_HOME ?= $(CURDIR)/.steptime
PYTEST_FLAGS ?=
# Minor releases of Airflow: tests/versions/foreign_airflow.py names the newest release of each.
AIRFLOWS ?= 3.1 3.2 3.3
PYTHONS ?= 3.11 3.12 3.13
# Compiled modules are kept, whatever a container's image sets: each of some thousand processes, tests and
# jobs would compile Airflow or NeMo anew.
unexport PYTHONDONTWRITEBYTECODE
# Which tests each target runs, and how long they take: docs/testing.md.
QUICK := not trainer and not end_to_end and not browser and not slurm and not drill and not exhaustive
UNIT := $(QUICK) and not service and not slow and not long
# Several at a time, as many tests wait. tests/conftest.py groups those that share an Airflow or a Slurm.
PYTEST := $(BIN)/pytest --dist loadgroup --no-loadscope-reorder
# Beside the tests, as mypy takes a minute of one core.
WITH_LINT := $(MAKE) --no-print-directory --jobs 2 lint
# The packages of Debian that tests use: those of the first part of the list are for `make check`, too.
CHECK_PACKAGES := $(shell sed '/^$$/,$$d;/^\#/d' tests/debian-packages.txt)
TEST_PACKAGES := $(shell sed '/^\#/d' tests/debian-packages.txt)
# Ubuntu has Chromium as a snap only: Playwright fetches its own there. Its docker-compose needs an older Python.
IS_UBUNTU := $(shell grep -s '^ID=ubuntu' /etc/os-release)
ifneq ($(IS_UBUNTU),)
TEST_PACKAGES := $(patsubst docker-compose,docker-compose-v2,$(filter-out chromium-headless-shell,$(TEST_PACKAGES)))
endif
.PHONY: help check-packages test-packages setup lint unit-tests quick-tests all-tests demo check test test-all drills test-bare test-compose test-versions test-upgrade screenshots site dist audit lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# What a target needs of the system comes first: nothing is tested without it.
check-packages:
	@./debian_packages.sh $(CHECK_PACKAGES)

test-packages:
	@./debian_packages.sh $(TEST_PACKAGES)

setup: $(VENV)/.complete ## create the environment that runs Airflow and steptime

$(VENV)/.complete: requirements.lock requirements-bootstrap.txt pyproject.toml
	@echo "setup: installing Airflow and steptime into $(VENV)"
	@./make_environment.sh $(VENV) $(PYTHON)
	@touch $@

demo: setup ## train a tiny Llama 3.1 at 1 and 2 ranks through Airflow, and show the results
	@$(BIN)/steptime demo

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Collecting compiles each module of a new environment once, and not once in each worker.
$(VENV)/.compiled: $(VENV)/.complete
	@$(BIN)/pytest --collect-only -qq >/dev/null || true
	@touch $@

unit-tests: $(VENV)/.compiled
	$(PYTEST) -n 4 -m "$(UNIT)" $(PYTEST_FLAGS)

quick-tests: $(VENV)/.compiled
	$(PYTEST) -n 4 -m "not exhaustive" $(PYTEST_FLAGS)

all-tests: $(VENV)/.compiled
	$(PYTEST) -n 6 $(PYTEST_FLAGS)

check: check-packages setup ## lint, types and unit tests
	@$(WITH_LINT) unit-tests

test: test-packages setup ## lint, types and tests, with real training, a running Airflow, a real Slurm and a browser
	@$(if $(IS_UBUNTU),$(BIN)/playwright install --with-deps --only-shell chromium)
	@$(WITH_LINT) quick-tests

test-all: test-packages setup ## the same with drills, and more of each kind
	@$(WITH_LINT) all-tests

drills: test-packages setup ## break things on purpose: SEEDS=100 draws that many faults, SEED=17 repeats one, AT_ONCE=2 two side by side, STORE=postgresql
	DRILL_TABLE=$(STEPTIME_HOME)/drills.md DRILL_STORE=$(STORE) DRILL_SEEDS=$(if $(SEED),$(SEED),1-$(or $(SEEDS),100)) $(BIN)/pytest tests/drills/test_drills.py $(if $(AT_ONCE),-n $(AT_ONCE) --dist worksteal) $(PYTEST_FLAGS)

test-compose: setup ## the team deployment by its page on a Docker engine, then with faults; skipped if none can be started
	$(BIN)/python tests/compose/first_run.py
	$(BIN)/python tests/compose/deployment.py

test-bare: ## make check, and the commands of README and the guide, in containers of Debian and Ubuntu; skipped without Docker
	for each in "check bookworm" "pages bookworm" "check trixie" "demo trixie" "check noble" "demo noble" "slurm noble"; do set -- $$each; \
	  python3 tests/bare/bare_machine.py $$1 --debian $$2 $(if $(PYTHON),--python $(PYTHON)) || exit 1; done

test-versions: setup ## the wheel in each supported Airflow: AIRFLOWS='3.1 3.2' PYTHONS=3.12 for some of them
	for airflow in $(AIRFLOWS); do for python in $(PYTHONS); do \
	  $(BIN)/python tests/versions/foreign_airflow.py $$airflow $$python || exit 1; done; done

test-upgrade: setup ## install into an Airflow 3.1 of others, upgrade while two jobs train, and uninstall: FROM=COMMIT
	$(BIN)/python tests/versions/upgrade.py $(FROM)

screenshots: setup ## take the pictures of README and docs, from the running demo and from a made half year
	STEPTIME_PICTURES=$(CURDIR)/docs/images $(BIN)/pytest -q tests/pages/test_pictures.py
	$(BIN)/python docs/take_screenshots.py

site: setup ## build the documentation as a site, build/site/index.html; broken links fail
	@test -x build/mkdocs/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python build/mkdocs
	@$(BIN)/uv pip sync --quiet --python build/mkdocs/bin/python docs/requirements.lock
	@rm -rf build/docs && mkdir -p build && cp -R docs build/docs
	@for page in README CHANGELOG CONTRIBUTING SECURITY; do sed -E 's#(\]\(|")docs/#\1#g' $$page.md >build/docs/$$page.md; done
	@$(BIN)/python docs/make_reference.py build/docs/reference
	build/mkdocs/bin/mkdocs build --strict

dist: setup ## build the wheel and the sdist of the last commit into dist/, with the same bytes each time, and check them
	@rm -rf dist build/dist && git clone --quiet . build/dist # of the commit alone, with the tags that make its version
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --out-dir dist build/dist
	$(BIN)/uv tool run --from twine twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/uv tool run --from 'validate-pyproject[all]' validate-pyproject pyproject.toml
	sha256sum dist/*.whl dist/*.tar.gz

audit: setup ## look for known vulnerabilities in the locked packages; explained ones are in ignored-advisories.txt
	for lock in requirements.lock docker/requirements.lock docs/requirements.lock trainer/requirements-cpu.lock.txt trainer/requirements-bridge-cpu.lock.txt; do \
	  $(BIN)/uv tool run pip-audit==2.10.1 --strict --disable-pip --no-deps -r $$lock \
	    $$(sed -nE 's/^([A-Z]+-[^ ]+).*/--ignore-vuln \1/p' ignored-advisories.txt) || exit 1; done

lock: setup ## resolve the packages of the Airflow environment, of docker/Dockerfile and of the site
	$(BIN)/uv pip compile --quiet pyproject.toml requirements-bootstrap.txt --universal --python-version 3.11 --extra celery --group dev --generate-hashes -o requirements.lock
	$(BIN)/uv pip compile --quiet --group docs --universal --python-version 3.11 --generate-hashes -o docs/requirements.lock
	cp requirements.lock docker/requirements.lock # uv keeps the versions that it finds in its output file
	$(BIN)/uv pip compile --quiet pyproject.toml --python-version 3.11 --extra team --generate-hashes -o docker/requirements.lock

clean: ## stop Airflow and Slurm, and delete the environment and all state
	@test ! -x $(BIN)/steptime || { $(BIN)/steptime down && $(BIN)/steptime slurm down; }
	rm -rf $(VENV) build $(STEPTIME_HOME)
