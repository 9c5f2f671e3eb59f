"""The cluster's folder and ports: the path is short enough for sockets, and both stay over restarts."""

import socket
import sys
from pathlib import Path

import pytest
from kept import assert_kept

from steptime.errors import SystemFailure
from steptime.mini_slurm import config_files
from steptime.mini_slurm import layout as layouts

SHORT = Path("/srv/steptime")
LONG = "a home with blanks/" + "and a very long name, " * 6


def test_a_long_home_is_reached_by_a_short_link(tmp_path):
    home = tmp_path / LONG
    layouts.prepare(home)
    layout = layouts.choose(home)
    try:
        assert len(str(layout.root)) < 60
        assert " " not in str(layout.root)
        assert (layout.root / "etc").samefile(home / "slurm/etc")
        assert layout.root.parent.stat().st_mode & 0o777 == 0o700
        assert layouts.leads_home(home, layout)
    finally:
        layouts.remove_link(home, layout)
    assert not layout.root.parent.exists()
    assert not layouts.leads_home(home, layout)


def test_a_link_that_was_turned_elsewhere_is_not_believed_and_not_removed(tmp_path):
    home = tmp_path / LONG
    layouts.prepare(home)
    layout = layouts.choose(home)
    layout.root.unlink()
    layout.root.symlink_to(tmp_path)
    assert not layouts.leads_home(home, layout)
    layouts.remove_link(home, layout)
    assert layout.root.is_symlink()
    layout.root.unlink()
    layout.root.parent.rmdir()


def test_a_link_in_another_users_folder_is_not_believed_and_not_removed(tmp_path, monkeypatch):
    """The folder's owner could point the link elsewhere."""
    home = tmp_path / LONG
    layouts.prepare(home)
    layout = layouts.choose(home)
    assert layouts.leads_home(home, layout)
    with monkeypatch.context() as as_another:
        as_another.setattr("os.getuid", lambda: layout.root.parent.stat().st_uid + 1)
        assert not layouts.leads_home(home, layout)
        layouts.remove_link(home, layout)
    assert layout.root.is_symlink()
    layouts.remove_link(home, layout)
    assert not layout.root.parent.exists()


def test_ports_are_the_same_for_a_home_unless_somebody_has_one():
    first = layouts.choose(SHORT).ports
    assert layouts.choose(SHORT).ports == first
    with socket.create_server(("127.0.0.1", first.slurmd("node5"))):
        second = layouts.choose(SHORT).ports
    assert not set(second.by_daemon().values()) & set(first.by_daemon().values())
    assert len(set(second.by_daemon().values())) == 11
    assert max(second.by_daemon().values()) < 32768, "below the ports that the kernel hands out"


def test_missing_packages_are_told_with_the_command_that_installs_them(tmp_path, monkeypatch):
    for name in ("munged", "sshd", "ssh", "ssh-keygen", "sbatch"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(layouts, "search_path", lambda: str(tmp_path))
    with pytest.raises(SystemFailure) as failure:
        layouts.require_packages()
    packed = "mariadb-server slurmctld slurmd slurmdbd"
    assert str(failure.value).endswith(f"apt-get install --no-install-recommends {packed}")
    (tmp_path / "munged").unlink()
    with pytest.raises(SystemFailure, match="packages that are not installed: munge"):
        layouts.program("munged")


def test_the_clusters_python_is_that_of_steptime(monkeypatch):
    """Debian's own cannot make environments without a further package, and Ubuntu's is of another version."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert layouts.program(name) == str(Path(sys.executable).parent / name)


def test_the_files_of_its_daemons_are_as_reviewed(tmp_path, monkeypatch):
    """After an intended change, rewrite them with STEPTIME_UPDATE_GOLDEN=1 and review `git diff`."""
    home = tmp_path / "a home with blanks"
    layouts.prepare(home)
    layout = layouts.choose(home).model_copy(update={"ports": layouts.Ports(first=7001)})
    monkeypatch.setattr(config_files, "_address", lambda: "127.0.1.1")
    monkeypatch.setattr("socket.gethostname", lambda: "head.example.org")
    monkeypatch.setattr(config_files, "user", lambda: "maria")
    monkeypatch.setattr(config_files, "search_path", lambda: "/usr/sbin:/usr/bin")
    try:
        config_files.write_all(layout)
        etc = layout.root / "etc"
        shown = [f"== {name}\n{(etc / name).read_text().strip()}" for name in config_files._FILES]
        modes = {
            path.name: f"{path.stat().st_mode & 0o777:o}"
            for folder in ("etc", "ssh")
            for path in sorted((layout.root / folder).iterdir())
        }
    finally:
        layouts.remove_link(home, layout)
    text = "\n\n".join([*shown, f"== modes\n{modes}"]) + "\n"
    for word, place in {str(layout.root): "ROOT", str(home): "HOME", sys.executable: "PYTHON"}.items():
        text = text.replace(word, place)
    assert_kept("mini-slurm.txt", text)
