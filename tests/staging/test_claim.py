"""Claims: who may make a thing where file locks do not work."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from steptime.staging import claim
from steptime.staging.claim import claimed

HOLDS = """
import sys, time
from pathlib import Path
from steptime.staging import claim
claim.RENEW_S = 0.05
with claim.claimed(Path(sys.argv[1]), "making of"):
    print("held", flush=True)
    time.sleep(120)
"""


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(claim.errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refused)
    monkeypatch.setattr(claim, "RENEW_S", 0.05)
    monkeypatch.setattr(claim, "LEASE_S", 2.0)
    monkeypatch.setattr(claim, "_LOOK_S", 0.01)


@pytest.mark.long
@pytest.mark.usefixtures("no_locks")
def test_what_somebody_left_is_taken_over_after_the_lease_by_one_after_the_other(tmp_path: Path) -> None:
    """Each holder keeps it for longer than the lease, and is not taken for dead by the next."""
    thing = tmp_path / "images" / "thing"
    thing.parent.mkdir()
    left = thing.parent / ".thing.claim"
    left.write_text("login9 1 left")
    began = time.monotonic()
    held: list[str] = []

    def hold() -> None:
        with claimed(thing, "making of"):
            held.append("begins")
            if len(held) < 4:
                time.sleep(1.2 * claim.LEASE_S)
            held.append("ends")

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held == ["begins", "ends"] * len(threads)
    assert time.monotonic() - began > claim.LEASE_S
    assert {path.name for path in thing.parent.iterdir()} == {".thing.lock"}


def test_a_claim_that_has_another_owner_by_the_end_is_left_to_it(tmp_path: Path) -> None:
    claim_file = tmp_path / ".thing.claim"
    with claimed(tmp_path / "thing", "making of"):
        assert claim_file.exists()
        claim_file.write_text("login9 1 another")
    assert claim_file.read_text() == "login9 1 another"


def test_who_has_lost_the_claim_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "thing")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        (tmp_path / ".thing.claim").write_text("login9 1 another")
        assert "is another's now" in holder.stdout.readline()
        assert holder.wait() == -9
    assert (tmp_path / ".thing.claim").read_text() == "login9 1 another"
