"""A run's other outputs beside its log: error output, other ranks and nodes, and what is not read."""

import gzip

import pytest
from logs import line_forms

from steptime.logs.finding import find_logs, group_by_run
from steptime.logs.reader import read_log
from steptime.measure.log_rows import log_row

STEPS = "".join(line_forms.megatron_bridge(step, total=100) for step in range(1, 8))
TITAN = "".join(line_forms.torchtitan(step) for step in range(1, 8))
OUT_OF_MEMORY = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.63 GiB.\n"


def write(folder, **files):
    paths = [folder / name.replace("__", "/") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths


@pytest.mark.parametrize(
    ("out", "err"),
    [
        ("log-x.out", "log-x.err"),
        ("x.log", "x.err"),
        ("96.o", "96.e"),
        ("slurm-7.out", "slurm-7.error"),
        ("train_stdout_7.log", "train_stderr_7.log"),
        ("output_191.txt", "error_191.txt"),
        ("log-a.exp_12_0.out", "log-a.exp_12_0.err"),
    ],
)
@pytest.mark.parametrize("steps_in", ["out", "err"])
def test_the_cause_is_found_in_the_error_output_beside_a_log(tmp_path, out, err, steps_in):
    """Torchtitan prints its steps on standard error."""
    texts = (STEPS, OUT_OF_MEMORY) if steps_in == "out" else ("loading modules\n", TITAN + OUT_OF_MEMORY)
    files = write(tmp_path, **dict(zip((out, err), texts, strict=True)))
    for logs in (find_logs(tmp_path), files, files[::-1], [files[steps_in == "err"]]):
        (run,) = group_by_run(logs)
        log = read_log(run.attempts, other_outputs=run.other_outputs)
        assert log.problems[0].message == "CUDA out of memory: 2.63 GiB could not be allocated (rank 2)"
        assert len(log.steps) == 7


def test_error_output_of_other_runs_is_not_this_runs(tmp_path):
    write(tmp_path, **{"log-a.out": STEPS, "log-b.out": STEPS, "log-b.err": OUT_OF_MEMORY})
    first, second = (
        log_row(run.attempts, other_outputs=run.other_outputs) for run in group_by_run(find_logs(tmp_path))
    )
    assert (first["state"], second["state"]) == ("incomplete", "failed")
    assert "log-b.err" in second["warnings"]


def test_packed_error_output_is_read(tmp_path):
    (log,) = write(tmp_path, **{"log-a.out": STEPS})
    (tmp_path / "log-a.err.gz").write_bytes(gzip.compress(OUT_OF_MEMORY.encode()))
    (run,) = group_by_run([log])
    assert [file.name for file in run.other_outputs] == ["log-a.err.gz"]


def test_the_logs_of_torchruns_ranks_are_one_run(tmp_path):
    folder = "logs__none_7__attempt_0__{}__{}"
    files = {folder.format(rank, "stdout.log"): TITAN if rank == 7 else "\n" for rank in range(8)}
    files |= {folder.format(rank, "stderr.log"): OUT_OF_MEMORY if rank == 2 else "" for rank in range(8)}
    write(tmp_path, **files)
    (run,) = group_by_run(find_logs(tmp_path))
    assert run.attempts[0].parent.name == "7"
    log = read_log(run.attempts, other_outputs=run.other_outputs)
    assert "CUDA out of memory" in log.problems[0].message


def test_other_files_of_a_run_that_is_alone_are_read_or_named(tmp_path):
    files = {
        "log-x.out": STEPS,
        "nemo_error_log.txt": OUT_OF_MEMORY,
        "install.log": "error: none\n",
        "a.yaml": "",
    }
    write(tmp_path, **files)
    (run,) = group_by_run(find_logs(tmp_path))
    assert [file.name for file in run.other_outputs] == ["nemo_error_log.txt"]
    row = log_row(run.attempts, other_outputs=run.other_outputs, left_out=run.left_out)
    assert "CUDA out of memory" in row["reason"]
    assert "not read, as it is not known what is in it: install.log" in row["warnings"]


def test_a_hang_of_one_node_follows_from_an_exception_of_another(tmp_path):
    """Logs of several nodes have no common time."""
    hang = (
        "[rank0]:[E1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran\n"
    )
    raised = "[rank9]: Traceback (most recent call last):\n[rank9]: ValueError: heads\n"
    first, second = write(tmp_path, **{"log-x_7_0.out": STEPS + hang, "log-x_7_1.out": raised})
    log = read_log(first, other_outputs=[second])
    assert log.problems[0].message == "Python traceback: ValueError: heads (rank 9)"
