"""How a process is recognised again."""

import os
import shutil
import subprocess
import time

import pytest

from steptime.process_identity import boot_id, start_tick, user_name


def _now():
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


def test_the_start_is_told_in_ticks_since_the_boot_whatever_the_program_is_called(tmp_path):
    sleep = shutil.which("sleep")
    assert sleep is not None
    program = shutil.copy(sleep, tmp_path / "odd) R 1 (")
    before = _now()
    with subprocess.Popen([program, "1000"]) as process:
        try:
            assert int(before) <= start_tick(process.pid) <= _now()
        finally:
            process.kill()
    with pytest.raises(ProcessLookupError):
        start_tick(process.pid)


def test_a_boot_has_a_name():
    assert boot_id() == boot_id() != ""


def test_a_user_id_without_a_name_is_told(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert user_name() == "uid 54321"
