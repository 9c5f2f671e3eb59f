"""Finding logs, grouping them by run, and shortening their names."""

from pathlib import Path

import pytest

from steptime.cli.logs import short_names
from steptime.errors import UserError
from steptime.logs.finding import RunLogs, find_logs, group_by_run


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


def test_logs_below_a_folder(tmp_path):
    logs = make(tmp_path, "a/b/log-x.out", "a/log_runai.out", "log-y.out.gz")
    make(tmp_path, "a/b/sbatch_x.out", "a/b/log-x.err", "a/profile.nsys-rep")
    (tmp_path / "log-folder.out").mkdir()
    assert find_logs(tmp_path) == sorted(logs)
    assert find_logs(str(logs[0])) == [logs[0]]


def test_nothing_to_find(tmp_path):
    with pytest.raises(UserError, match="no training log"):
        find_logs(tmp_path)
    with pytest.raises(UserError, match="no log or folder at"):
        find_logs(tmp_path / "nothing")


def test_requeued_logs_are_grouped(tmp_path):
    names = ("log-acct.x_123_0.out", "log-acct.x_123_1.out", "log-acct.x_123_10.out", "log-acct.x_123_2.out")
    zero, one, ten, two = make(tmp_path, *names)
    other = tmp_path / "other" / "log-acct.x_123_0.out"
    assert group_by_run([zero, one, ten, two, other, one]) == [
        RunLogs((zero, one, two, ten)),
        RunLogs((other,)),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("log-nemo_nemotron4_340b_256_41.out", "log-nemo_nemotron4_340b_256_42.out"),
        ("log-x_8b_bf16_8.out", "log-x_8b_bf16_16.out"),
        ("log-acct.x_123_1.out", "log-acct.x_123_2.out"),
    ],
    ids=["job ids", "scales", "the first attempt is gone"],
)
def test_other_names_that_end_in_numbers_are_runs_of_their_own(tmp_path, names):
    logs = make(tmp_path, *names)
    assert group_by_run(logs) == [RunLogs((log,)) for log in logs]


def test_short_names():
    names = {
        "/e/log-pretrain_llama3.1_8b_bf16_8.out": "pretrain_llama3.1_8b_bf16_8",
        "/e/log-acct.pretrain_llama3.1_8b_fp8_8_123_0.out": "pretrain_llama3.1_8b_fp8_8_123_0",
        "/e/log_runai_job.out": "runai_job",
        "/e/log-x.out.gz": "x",
        "/e/train.log": "train",
    }
    assert short_names([Path(path) for path in names]) == list(names.values())


def test_equal_names_get_as_much_of_the_path_as_tells_them_apart():
    logs = [Path("/e/run_1/x/log-x.out"), Path("/e/run_2/x/log-x.out"), Path("/e/run_2/y/log-y.out")]
    assert short_names(logs) == ["run_1/x", "run_2/x", "y"]
    assert short_names([logs[0], logs[0]]) == ["/e/run_1/x/log-x.out"] * 2
    nested = [Path(f"/e/x_1/x_1_{number}/x_1/log-x_1.out") for number in (17, 18)]
    assert short_names(nested) == ["x_1_17", "x_1_18"]
