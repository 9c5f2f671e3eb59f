"""A configuration that a test may change."""

import shutil

import pytest

from steptime import settings


@pytest.fixture
def config(config_folder, monkeypatch):
    """Return a copy of the shipped configuration, which is the one in use."""
    shutil.copytree(settings.shipped("config"), config_folder, dirs_exist_ok=True)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config_folder))
    return config_folder
