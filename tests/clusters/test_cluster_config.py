"""Cluster files: the shipped one is valid, and each mistake in one is reported in one sentence."""

import os

import pytest

from steptime import settings
from steptime.cli import main
from steptime.clusters.config import load_cluster, load_clusters, open_cluster
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.errors import UserError
from steptime.files import read_limited
from steptime.recipes.cluster_files import list_clusters

WHOLE = {"name": "mine", "kind": "local", "gpu_type": "cpu", "work_dir": "/scratch"}


@pytest.fixture
def clusters(tmp_path, monkeypatch):
    """Return the folder of the cluster files in this test's configuration."""
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    folder = tmp_path / "clusters"
    folder.mkdir()
    return folder


def write(folder, **changes):
    lines = (f"{key}: {value}\n" for key, value in {**WHOLE, **changes}.items() if value is not None)
    (folder / "mine.yaml").write_text("".join(lines))


def test_the_shipped_local_cluster_is_this_machine_in_the_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    config = load_cluster("local")
    assert isinstance(config, LocalConfig)
    assert config.root == str(settings.home()) == str(tmp_path / "home")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 11})
    assert config.slot_count == 3, "of the cores that this process may use"
    assert (config.gpu_type, config.exclusive, config.container) == ("cpu", True, "none")


def test_a_cluster_of_ones_own(clusters):
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
        ({"container": "pyxis"}, "unknown container 'pyxis' of this kind of cluster"),  # it is part of srun
        ({"kind": "lokal"}, "unknown kind of cluster 'lokal': did you mean 'local'? Valid are: local"),
        ({"name": "yours"}, "line 1, name: 'yours' differs from the file's name, 'mine': change one of them"),
        ({"work_dir": "scratch"}, "line 4, work_dir: 'scratch' is no absolute path"),
    ],
    ids=str,
)
def test_a_broken_file_is_refused_with_its_place(clusters, changes, message):
    write(clusters, **changes)
    with pytest.raises(UserError) as refused:
        load_cluster("mine")
    assert message in str(refused.value)
    assert "mine.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_that_is_wrong_is_told_at_once(clusters):
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


def test_a_broken_cluster_hides_no_other(clusters, tmp_path, monkeypatch, capsys):
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


def refuses(clusters, field, sentences):
    """Assert that each value of the field is refused with its sentence and line, without any secret."""
    for value, sentence in sentences.items():
        write(clusters, **{field: value})
        with pytest.raises(UserError) as error:
            load_cluster("mine")
        assert f"mine.yaml, line 5, {field}" in str(error.value)
        assert sentence in str(error.value)
        assert not any(secret in str(error.value) for secret in ("hf_0123456789", "sesame"))


def test_the_environment_of_a_cluster_is_checked_as_a_runs_is(clusters):
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


@pytest.mark.parametrize(
    ("field", "sentences"),
    [
        (
            "poll_interval_s",
            {".inf": "has to be a finite number, not .inf", "3601": "at most 3600", "0": "at least"},
        ),
        (
            "patience_h",
            {
                "1:30": "1:30 is a number in base 60",
                ".nan": "finite",
                "1.0e+300": "at most 8784",
                "0": "above",
            },
        ),
        ("queue_patience_h", {"-.INF": "finite", "9000": "at most 8784"}),
        ("grace_s", {".inf": "finite", "010": "010 is a number in base 8", "86401": "at most 86400"}),
        ("gpu_hours_per_month", {".inf": "finite", "1:00:00": "base 60"}),
        ("gpus", {"0777": "base 8"}),
    ],
)
def test_a_number_is_finite_and_what_it_looks_like(clusters, field, sentences):
    refuses(clusters, field, sentences)


@pytest.mark.parametrize("value", ["1.5", "0.5", "1.0e+1", "1_00", "12"])
def test_usual_numbers_are_accepted(clusters, value):
    write(clusters, patience_h=value)
    assert load_cluster("mine").patience_h == float(value)


@pytest.mark.parametrize("kind", ["fifo", "link to /dev/zero", "sparse", "folder"])
def test_only_a_regular_file_of_a_sensible_size_is_read(clusters, kind):
    write(clusters)
    path = clusters / "odd.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(5 << 40)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    loaded, broken = load_clusters()
    assert "mine" in [config.name for config in loaded]
    assert broken is not None
    reason = {"sparse": "larger than 16 MiB", "folder": "Is a directory"}.get(kind, "not a regular file")
    assert str(broken) == f"{path}: cannot be read: {reason}."


def test_a_file_may_be_as_large_as_the_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert read_limited(path, at_most=3) == b"abc"
    with pytest.raises(OSError, match="larger than 0 MiB"):
        read_limited(path, at_most=2)


def test_each_line_of_the_setup_is_one_line_without_a_secret(clusters):
    write(clusters, setup='["module load cuda/12.6", "export A=$B TOKENIZERS_PARALLELISM=false"]')
    assert load_cluster("mine").setup == (
        *("module load cuda/12.6", "export A=$B TOKENIZERS_PARALLELISM=false"),
    )
    refused = {
        '["module load cuda", ""]': "line 5, setup.1: write one line of bash",
        '["a\\nb"]': "line 5, setup.0: write one line of bash",
        '["a\\rb"]': "line 5, setup.0: write one line of bash",
        '["a\\0b"]': "line 5, setup.0: write one line of bash",
        '["export HF_TOKEN=hf_0123456789"]': "line 5, setup.0: sets what looks like a secret",
        '["export HTTPS_PROXY=http://me:sesame@proxy"]': "line 5, setup.0: has an address with a password",
        '["wandb login sesame0123456789"]': "and a job script is recorded and shown: put it into a file",
    }
    refuses(clusters, "setup", refused)
    write(clusters, setup='["export HF_TOKEN=$MINE", "source ~/.secrets"]')
    assert len(load_cluster("mine").setup) == 2
