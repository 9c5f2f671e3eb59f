"""The page for whoever comes to help, and the workflow that CI of the usual host runs."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PAGE = ROOT / "CONTRIBUTING.md"


def made_by_make() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_fits_its_schema() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*check, str(WORKFLOW)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_what_a_person_runs() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    for command in commands:
        program, *arguments = command.split()
        if program == "make":
            assert arguments[0] in made_by_make()
        else:
            assert (ROOT / program).is_file(), command


def test_every_command_and_link_of_the_page_is_there() -> None:
    page = PAGE.read_text()
    assert "(CONTRIBUTING.md)" in (ROOT / "README.md").read_text()
    assert len(page.splitlines()) <= 60, "it is to stay one page"
    for target in re.findall(r"^(?:make|.*`make) ([a-z]+)", page, re.MULTILINE):
        assert target in made_by_make()
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:tests|docs|\.ci|trainer)/[\w./-]*)`", page):
        assert (ROOT / path).exists(), path
