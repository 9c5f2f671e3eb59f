"""What cannot be started is refused by every command that plans it, for the same reason."""

import json
import sys
from pathlib import Path

import pytest

from steptime.cli import main
from steptime.settings import config_dir

REFUSED = (
    "tiny·fp32·2 needs 2 slots and local has 1: plan fewer, or set slots: 2 in config/clusters/local.yaml"
)


@pytest.fixture
def one_slot(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster `local` holds one rank, and a sweep asks for two."""
    shipped, config = config_dir(), here / "config"
    (config / "clusters").mkdir(parents=True)
    (config / "sweeps").mkdir()
    for name in ("workloads", "gpus.yaml"):
        (config / name).symlink_to(shipped / name)
    local = (shipped / "clusters" / "local.yaml").read_text().replace("slots: auto", "slots: 1")
    (config / "clusters" / "local.yaml").write_text(local)
    sweep = {"name": "night", "gpu_hours_max": 10, "runs": [{"workload": "llama3.1", "gpus": [2]}]}
    (config / "sweeps" / "night.yaml").write_text(json.dumps(sweep))
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))


@pytest.mark.usefixtures("one_slot")
@pytest.mark.parametrize(
    ("command", "shows_the_plan"),
    [
        ("plan llama3.1 --gpus 2", True),
        ("run llama3.1 --gpus 2 --dry-run", True),
        ("run llama3.1 --gpus 2", False),
        ("sweep plan night", False),
        ("sweep run night", False),
    ],
)
def test_a_run_that_its_cluster_cannot_hold(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    shows_the_plan: bool,
) -> None:
    monkeypatch.setattr(sys, "argv", ["steptime", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()

    said = capsys.readouterr()
    assert ended.value.code == 1
    assert REFUSED in " ".join(said.err.split())
    assert ("Nothing was submitted" in said.out) is shows_the_plan
