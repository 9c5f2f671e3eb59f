"""`debian_packages.sh` with stand-ins for Debian's programs, which write down how they were called."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from called import captured

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "dpkg-query": 'case "$3" in there) echo "install ok installed" ;; *) exit 1 ;; esac',
    "id": "echo $user",
    "apt-get": 'echo "apt-get $*" >>"$log"',
    "sudo": """[ "$1" != -n ] || exit $refuses\necho "sudo $1 $2" >>"$log"\nexec "$@\"""",
}


class Outcome(NamedTuple):
    """The outcome of the script, with every call of apt-get and sudo."""

    done: subprocess.CompletedProcess[str]
    calls: list[str]


def look(tmp_path, *packages, user, refuses=False, without="", skip=""):
    """Run the script as `user`, where sudo `refuses` or not, and where the program `without` is missing."""
    log, programs = tmp_path / "calls", tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "grep", "tee", "chmod", "rm"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name, text in PROGRAMS.items():
        if name == without:
            continue
        (programs / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
        (programs / name).chmod(0o755)
    script = tmp_path / "debian_packages.sh"
    policy = tmp_path / "policy-rc.d"
    script.write_text((ROOT / script.name).read_text().replace("/usr/sbin/policy-rc.d", str(policy)))
    script.chmod(0o755)
    environment = {"PATH": str(programs), "SKIP_PACKAGES": skip, "log": str(log)}
    environment |= {"user": str(user), "refuses": str(int(refuses))}
    done = captured([script, *packages], env=environment)
    assert not policy.exists()
    return Outcome(done, log.read_text().splitlines() if log.exists() else [])


def test_nothing_is_said_or_done_where_all_are_there(tmp_path):
    outcome = look(tmp_path, "there", user=1000, refuses=True)
    assert (outcome.done.returncode, outcome.done.stdout, outcome.done.stderr) == (0, "", "")
    assert outcome.calls == []


def test_root_installs_what_is_missing_and_says_so(tmp_path):
    outcome = look(tmp_path, "munge", "there", "g++", user=0)
    assert outcome.done.returncode == 0, outcome.done.stderr
    assert outcome.done.stdout == "setup: installing Debian packages: munge g++\n"
    assert outcome.calls == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends munge g++",
    ]


def test_a_user_with_sudo_installs_by_it(tmp_path):
    outcome = look(tmp_path, "munge", user=1000)
    assert outcome.done.returncode == 0, outcome.done.stderr
    assert {"sudo apt-get update", "sudo env DEBIAN_FRONTEND=noninteractive"} <= set(outcome.calls)


@pytest.mark.parametrize("without", ["", "sudo"])
def test_a_plain_user_is_told_the_command_and_nothing_starts(tmp_path, without):
    outcome = look(tmp_path, "munge", "g++", user=1000, refuses=True, without=without)
    assert outcome.done.returncode == 1
    assert "  apt-get update && apt-get install -y --no-install-recommends munge g++\n" in outcome.done.stderr
    assert outcome.calls == []


def test_whoever_has_the_programs_from_elsewhere_says_so(tmp_path):
    outcome = look(tmp_path, "munge", user=1000, refuses=True, skip="1")
    assert (outcome.done.returncode, outcome.done.stderr, outcome.calls) == (0, "", [])


def test_another_system_is_told_what_the_tests_use(tmp_path):
    outcome = look(tmp_path, "munge", user=0, without="dpkg-query")
    assert outcome.done.returncode == 0
    assert "not Debian or Ubuntu" in outcome.done.stderr
    assert "munge" in outcome.done.stderr
