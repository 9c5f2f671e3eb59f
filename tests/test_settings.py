"""The folders that environment variables name."""

import re

import pytest
from called import steptime

from steptime.errors import UserError
from steptime.pages.plans import describe_plan
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.settings import config_file, config_files, config_names, dags_dir, replaced_files, shipped
from steptime.store.run_queries import Store


@pytest.mark.parametrize("folder", ["gone", "~nobody-here/x"])
def test_dags_that_do_not_exist_are_refused(folder, monkeypatch):
    monkeypatch.setenv("STEPTIME_DAGS_DIR", folder)
    with pytest.raises(UserError, match="STEPTIME_DAGS_DIR"):
        dags_dir()


def test_a_team_writes_only_its_own_files(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    (tmp_path / "sweeps").mkdir()
    text = "name: night\ngpu_hours_max: 1\ncluster: local\nruns: [{workload: llama3.1}]\n"
    (tmp_path / "sweeps" / "night.yaml").write_text(text)

    assert {"night", "example-weekly", "example-nodes"} <= set(list_sweeps())
    assert load_sweep("night").gpu_hours_max == 1
    assert config_file("gpus.yaml") == shipped("config") / "gpus.yaml"
    assert config_file("clusters/selene.yaml") == tmp_path / "clusters" / "selene.yaml", "where it is written"
    assert config_names("nothing") == ()
    assert replaced_files() == ()


def test_every_shipped_file_is_one_that_is_read():
    """An archive has those, and people are told which of those they replace."""
    ours = shipped("config")
    there = {str(path.relative_to(ours)) for path in ours.rglob("*.yaml")}
    assert there - set(config_files()) == {"upstream/differences.yaml"}, "which is steptime's own"


def test_a_file_of_the_team_replaces_the_shipped_one_and_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    (tmp_path / "sweeps").mkdir()
    for name in ("example-weekly", "example-nodes"):
        text = (shipped("config") / "sweeps" / f"{name}.yaml").read_text()
        text = (
            re.sub("^description: .*", "description: ours", text, flags=re.MULTILINE)
            if name == "example-weekly"
            else text
        )
        (tmp_path / "sweeps" / f"{name}.yaml").write_text(text)

    assert load_sweep("example-weekly").description == "ours"
    assert replaced_files() == ("sweeps/example-weekly.yaml",), "the other one is the same"
    for command in (["sweep", "list"], ["recipes", "--workload", "llama3.1"], ["plan", "llama3.1"]):
        assert steptime(*command) == 0
        assert f"{tmp_path} replaces shipped files: sweeps/example-weekly.yaml\n" in capsys.readouterr().err
    page = describe_plan(Store(f"sqlite:///{tmp_path / 'store.db'}"), {"workload": "llama3.1"})
    assert page["sentence"].endswith(f"{tmp_path} replaces shipped files: sweeps/example-weekly.yaml.")


def test_a_sweep_is_copied_from_an_example_and_is_the_teams_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    for name in ("weekly", "nodes"):
        assert not {name} & set(list_sweeps()), "an upgrade never writes what a team writes"
        assert steptime("sweep", "plan", name) == 1
        make = f"steptime sweep new {name} --from example-{name}"
        assert capsys.readouterr().err == f"steptime: there is no sweep '{name}' yet: '{make}' makes it.\n"
        assert steptime(*make.split()[1:]) == 0
        assert capsys.readouterr().out == f"{tmp_path}/sweeps/{name}.yaml\n"
        assert steptime("sweep", "plan", name) == 0
        copied = load_sweep(name)
        assert copied == load_sweep(f"example-{name}").model_copy(update={"name": name})
    assert replaced_files() == ()
    assert steptime("sweep", "new", "weekly", "--from", "example-nodes") == 1
    assert "there is a sweep 'weekly' already, " in capsys.readouterr().err
    assert steptime("sweep", "new", "../x", "--from", "example-nodes") == 1
    assert "'../x' is not a valid name of a sweep: use small letters" in capsys.readouterr().err
    assert steptime("sweep", "new", "x", "--from", "exampel-nodes") == 1
    assert "did you mean 'example-nodes'?" in capsys.readouterr().err
