"""Cluster files: the shipped one is valid, and each mistake in one is reported in one sentence."""

import os
from pathlib import Path

import pytest

from steptime import settings
from steptime.cli import main
from steptime.clusters.config import load_cluster, open_cluster
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.errors import UserError
from steptime.recipes.cluster_files import list_clusters

WHOLE = {"name": "mine", "kind": "local", "gpu_type": "cpu", "work_dir": "/scratch"}


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cluster files in this test's configuration."""
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    folder = tmp_path / "clusters"
    folder.mkdir()
    return folder


def write(folder: Path, **changes: object) -> None:
    lines = (f"{key}: {value}\n" for key, value in {**WHOLE, **changes}.items() if value is not None)
    (folder / "mine.yaml").write_text("".join(lines))


def test_the_shipped_local_cluster_is_this_machine_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    config = load_cluster("local")
    assert isinstance(config, LocalConfig)
    assert config.root == str(settings.home()) == str(tmp_path / "home")
    assert config.slot_count == len(os.sched_getaffinity(0))
    assert (config.gpu_type, config.exclusive, config.container) == ("cpu", True, "none")


def test_a_cluster_of_ones_own(clusters: Path) -> None:
    write(clusters, slots=8, exclusive="false")
    assert list_clusters() == ("local", "mine", "mini-slurm"), "the shipped ones beside it"
    config = load_cluster("mine")
    assert isinstance(config, LocalConfig)
    assert (config.root, config.slot_count, config.exclusive, config.grace_s) == ("/scratch", 8, False, 10)
    assert isinstance(open_cluster(config), LocalCluster)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "mine.yaml, line 5, slots"),
        ({"nodes": 4}, "mine.yaml, line 5, nodes: unknown field"),
        ({"kind": None}, "kind: is missing"),
        ({"kind": "lokal"}, "unknown kind of cluster 'lokal': did you mean 'local'? Valid are: local"),
        ({"name": "yours"}, "line 1, name: 'yours' differs from the file's name, 'mine': change one of them"),
        ({"work_dir": "scratch"}, "line 4, work_dir: 'scratch' is no absolute path"),
    ],
    ids=str,
)
def test_a_broken_file_is_refused_with_its_place(
    clusters: Path, changes: dict[str, object], message: str
) -> None:
    write(clusters, **changes)
    with pytest.raises(UserError) as refused:
        load_cluster("mine")
    assert message in str(refused.value)
    assert "mine.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_that_is_wrong_is_told_at_once(clusters: Path) -> None:
    write(
        clusters, name="yours", work_dir="scratch", slots=0, setup='["", "a", "export HF_TOKEN=hf_1"]', node=4
    )
    with pytest.raises(UserError) as refused:
        load_cluster("mine")
    path = clusters / "mine.yaml"
    assert [told.removeprefix(f"{path}, ").partition(": ")[0] for told in str(refused.value).split("\n")] == [
        *("line 1, name", "line 4, work_dir", "line 5, slots", "line 6, setup.0", "line 6, setup.2"),
        "line 7, node",
    ]


def test_a_broken_cluster_hides_no_other(
    clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that goes through all clusters handles the others, and says what is wrong with this one."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    write(clusters)
    (clusters / "broken.yaml").write_text("name: broken\nkind: slurm\n")
    monkeypatch.setattr("sys.argv", ["steptime", "down"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed
    assert f"{clusters}/broken.yaml, line 1, connection: is missing." in printed.err


def refuses(clusters: Path, field: str, sentences: dict[str, str]) -> None:
    """Assert that each value of the field is refused with its sentence and line, without any secret."""
    for value, sentence in sentences.items():
        write(clusters, **{field: value})
        with pytest.raises(UserError) as error:
            load_cluster("mine")
        assert f"mine.yaml, line 5, {field}" in str(error.value)
        assert sentence in str(error.value)
        assert not any(secret in str(error.value) for secret in ("hf_0123456789", "sesame"))


def test_the_environment_of_a_cluster_is_checked_as_a_runs_is(clusters: Path) -> None:
    write(clusters, environment="{NCCL_IB_HCA: mlx5, GLOO_SOCKET_IFNAME: ib0}")
    assert load_cluster("mine").environment == {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "ib0"}
    refused = {
        "{1ST: x}": "'1ST' is not a variable name",
        "{SLURM_NTASKS: '2'}": "'SLURM_NTASKS' is set by the job script or the cluster itself",
        "{HF_TOKEN: hf_0123456789}": "'HF_TOKEN' looks like a secret",
        "{PROXY: 'http://me:sesame@proxy'}": "'PROXY' has an address with a password",
        "{WORKERS: 8}": "has to be text, not 8 (put it in quotes)",
    }
    refuses(clusters, "environment", refused)


def test_each_line_of_the_setup_is_one_line_without_a_secret(clusters: Path) -> None:
    write(clusters, setup='["module load cuda/12.6", "export A=$B TOKENIZERS_PARALLELISM=false"]')
    assert load_cluster("mine").setup == (
        *("module load cuda/12.6", "export A=$B TOKENIZERS_PARALLELISM=false"),
    )
    refused = {
        '["module load cuda", ""]': "line 5, setup.1: write one line of bash",
        '["a\\nb"]': "line 5, setup.0: write one line of bash",
        '["a\\rb"]': "line 5, setup.0: write one line of bash",
        '["export HF_TOKEN=hf_0123456789"]': "line 5, setup.0: sets what looks like a secret",
        '["export HTTPS_PROXY=http://me:sesame@proxy"]': "line 5, setup.0: sets what looks like a secret",
    }
    refuses(clusters, "setup", refused)
    write(clusters, setup='["export HF_TOKEN=$MINE", "source ~/.secrets"]')
    assert len(load_cluster("mine").setup) == 2
