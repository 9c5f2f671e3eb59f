"""What staging leaves for a job: an interpreter or an image, and a folder with the trainer."""

from steptime.clusters.base import StagedFiles


def staged_files(python=None, trainer_path="/shared/trainer", **fields):
    """Return staged files; without `python` they are those of an image."""
    defaults = {"venv_lock_sha256": None, "trainer_sha256": "b" * 64}
    interpreter = None if python is None else str(python)
    return StagedFiles(python=interpreter, trainer_path=str(trainer_path), **{**defaults, **fields})
