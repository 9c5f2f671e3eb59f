"""Parts of building the trainer's environment: what is installed from where, and why a failure is one."""

import sys

import pytest

from steptime.staging import build_venv, stage
from steptime.staging.scripts import ScriptEnd

ABSENT = "The package `nemo` requires `causal-conv1d>=1`, but it's not installed"
OTHER = "The package `nemo` requires `mamba-ssm`, but it's not installed"
CONFLICT = "The package `nemo` requires `torch<2.6`, but `2.7` is installed"


@pytest.mark.parametrize(
    ("printed", "fits"),
    [
        ([ABSENT], True),
        (["Checked 2 packages", ABSENT, ABSENT], True),
        ([OTHER], False),
        ([ABSENT, CONFLICT], False),
        (["error: no such environment"], False),
    ],
)
def test_only_what_the_lock_leaves_out_may_be_missing(capsys, printed, fits):
    lock = "torch==2.13.0\n# absent: causal-conv1d, transformer-engine\n"

    def run(*argv):
        assert argv == ("/e/bin/uv", "pip", "check", "--python", "/e/bin/python")
        raise build_venv._CommandFailedError(argv, 1, "\n".join(printed))

    if fits:
        build_venv._check_fit(run, "/e/bin/uv", "/e/bin/python", lock=lock)
        assert capsys.readouterr().out == "these are left out on purpose\n"
    else:
        with pytest.raises(build_venv._CommandFailedError):
            build_venv._check_fit(run, "/e/bin/uv", "/e/bin/python", lock=lock)


@pytest.mark.parametrize(
    ("last_line", "why"),
    [
        (
            "error: Failed to install: No space left on device (os error 28)",
            "the disk is full; an environment",
        ),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        (
            "ERROR: No matching distribution found for torch==9",
            "a package was not found: the package index",
        ),
        ("  cause: Because absent was not found in the package registry and", "a package was not found"),
        ("Segmentation fault", "exit code 7"),
    ],
)
def test_a_failure_says_why_and_shows_the_last_lines(last_line, why):
    message = stage._venv_failure("here", "/venvs/x", ScriptEnd(7, ("line before", last_line)))
    assert message.startswith(f"the trainer's environment /venvs/x could not be built on here: {why}")
    assert message.endswith(f"line before\n{last_line}")


@pytest.mark.parametrize(
    ("torch", "output", "looks_at"),
    [
        ("torch==2.13.0+cpu\n", "No matching distribution found", "https://download.pytorch.org/whl/cpu"),
        ("torch==2.11.0+cu130\n", "No matching distribution found", "https://download.pytorch.org/whl/cu130"),
        ("torch==2.13.0\n", "No matching distribution found", None),
        ("torch==2.13.0+cpu\n", "No space left on device", None),
    ],
)
def test_pytorchs_own_index_is_the_second_choice(tmp_path, torch, output, looks_at):
    calls = []

    def run(*argv):
        calls.append(argv)
        if len(calls) == 1:
            raise build_venv._CommandFailedError(argv, 1, output)

    if looks_at is None:
        with pytest.raises(build_venv._CommandFailedError):
            build_venv._install_torch(tmp_path, torch, run)
        assert len(calls) == 1
    else:
        build_venv._install_torch(tmp_path, torch, run)
        assert [call[-2:] for call in calls] == [
            ("-r", str(tmp_path / "requirements-torch.txt")),
            ("--extra-index-url", looks_at),
        ]
        assert all("--no-deps" in call for call in calls), "what it needs is in the lock, pinned"


def test_a_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(build_venv, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(sys, "argv", ["build_venv", str(tmp_path / "file" / "venv"), "lock", "bootstrap"])
    assert build_venv.main() == 1
    assert capsys.readouterr().out.startswith("failed: [Errno ")
