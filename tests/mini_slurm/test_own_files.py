"""What the mini Slurm writes and recognizes without a running daemon: configuration, keys and processes."""

import re
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from steptime.mini_slurm import daemons, processes, service
from steptime.mini_slurm import layout as layouts
from steptime.mini_slurm.config_files import write_all
from steptime.mini_slurm.layout import SlurmLayout


@pytest.fixture
def layout(tmp_path):
    ports = layouts.choose(Path("/srv/steptime")).ports
    return SlurmLayout(root=tmp_path / "slurm", ports=ports)


def written_keys(layout):
    for folder in ("etc", "ssh"):
        (layout.root / folder).mkdir(parents=True, exist_ok=True)
    write_all(layout)
    return {path.name: path.read_bytes() for path in (layout.root / "ssh").iterdir()}


def test_a_key_is_kept_unless_a_half_of_it_is_lost(layout):
    first = written_keys(layout)
    assert written_keys(layout) == first
    (layout.root / "ssh/id").unlink()
    (layout.root / "ssh/host.pub").unlink()
    second = written_keys(layout)
    assert second.keys() == first.keys()
    assert not {*second.values()} & {*first.values()}, (
        "each was made anew, and what names it was written anew"
    )
    assert second["authorized_keys"] == second["id.pub"]


@pytest.mark.parametrize("odd", ['/opt/a "quoted" folder', "/opt/back\\slash"])
def test_a_variable_that_sshd_could_not_read_is_left_out(layout, monkeypatch, odd):
    def of_login():
        written_keys(layout)
        [line] = re.findall("^SetEnv (.*)$", (layout.root / "etc/sshd_config").read_text(), re.MULTILINE)
        return set(re.findall(r'"(\w+)=[^"\\]*"', line))

    usual = of_login()
    assert {"PATH", "SLURM_CONF", "SHLVL"} < usual
    monkeypatch.setenv("PATH", odd, prepend=":")
    assert of_login() == usual - {"PATH"}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_daemon_that_starts_a_child_is_the_older_one(layout, monkeypatch, order):
    def process(number):
        command = ["slurmctld", "-f", str(layout.slurm_conf)]
        return SimpleNamespace(
            pid=number,
            info={"name": "slurmctld"},
            name=lambda: "slurmctld",
            cmdline=lambda: command,
            create_time=lambda: 1e9 + number,
        )

    monkeypatch.setattr(psutil, "process_iter", lambda _: map(process, order))
    assert {name: one.pid for name, one in processes.daemons(layout).items()} == {"slurmctld": 1}


@pytest.mark.parametrize(
    ("dead", "done"),
    [
        (set(), ["Slurm is running already; looking at its health"]),
        (
            {"mariadbd", "slurmd-node3", "slurmd-node7"},
            ["starting MariaDB", "mariadbd", "starting 2 nodes", "node3", "node7"],
        ),
    ],
)
def test_up_starts_what_does_not_run_and_nothing_else(tmp_path, monkeypatch, dead, done):
    did = []
    for name in ("wait_until_ready", "install_database", "add_cluster", "wait_for_nodes"):
        monkeypatch.setattr(daemons, name, lambda *_: None)
    monkeypatch.setattr(daemons, "start", lambda _, daemon: did.append(daemon))
    monkeypatch.setattr(daemons, "start_nodes", lambda _, nodes: did.extend(nodes))
    monkeypatch.setattr(processes, "daemons", lambda _: dict.fromkeys(set(daemons.ALL) - dead))
    monkeypatch.setattr(layouts, "require_packages", lambda: None)
    _, ran_already = service.up(tmp_path, did.append)
    assert did == done
    assert ran_already == (not dead)
