"""The folders that environment variables name."""

import pytest

from steptime.errors import UserError
from steptime.settings import dags_dir


@pytest.mark.parametrize("folder", ["gone", "~nobody-here/x"])
def test_dags_that_do_not_exist_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DAGS_DIR", folder)
    with pytest.raises(UserError, match="STEPTIME_DAGS_DIR"):
        dags_dir()
