"""Every failure the reader knows, in the words of the library that prints it."""

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs.models import Problem

NCCL = (
    "[rank368]:[E808 04:21:41.160918398 ProcessGroupNCCL.cpp:655] [Rank 368] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
    "for 600001 milliseconds before timing out."
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.11 GiB of which 1.20 GiB is free."
)
LINES = [
    (NCCL, "nccl_timeout", "ALLREDUCE of rank 368 took longer than 600000 ms"),
    ("Watchdog caught collective operation timeout", "nccl_timeout", "a collective operation timed out"),
    (OOM, "cuda_out_of_memory", "2.00 GiB could not be allocated on GPU 3"),
    ("RuntimeError: CUDA error: out of memory", "cuda_out_of_memory", "CUDA out of memory"),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0.",
        "host_out_of_memory",
        "the host ran out of memory",
    ),
    (
        "[rank 7] Reduce-scatter: SM 3 [0]: expecting 1 got 0",
        "userbuffers_hang",
        "userbuffers wait for a flag of another GPU (expecting 1 got 0)",
    ),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "hub_unreachable",
        "https://huggingface.co cannot be reached",
    ),
    (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): "
        "Max retries exceeded with url: /x",
        "hub_unreachable",
        "huggingface.co cannot be reached",
    ),
    (
        "OSError: Can't load tokenizer for 'meta-llama/Llama-3.1-8B'. If you were trying to load it from",
        "hub_unreachable",
        "'meta-llama/Llama-3.1-8B' cannot be loaded",
    ),
    ("You are trying to access a gated repo.", "hub_unreachable", "set HF_TOKEN"),
    (
        "slurmstepd: error: *** STEP 81.0 ON n1 CANCELLED AT 2025-04-11T14:48:45 DUE TO TIME LIMIT ***",
        "time_limit",
        "Slurm ended the job at its time limit, 2025-04-11T14:48:45",
    ),
    (
        "slurmstepd: error: *** JOB 81 ON n1 CANCELLED AT 2025-04-11T14:48:45 DUE TO PREEMPTION ***",
        "cancelled",
        "Slurm ended the job at 2025-04-11T14:48:45: PREEMPTION",
    ),
    (
        "slurmstepd: error: *** STEP 81.0 ON n1 CANCELLED AT 2025-04-11T14:48:45 ***",
        "cancelled",
        "the job was cancelled at 2025-04-11T14:48:45",
    ),
    (
        "srun: error: n1: task 3: Exited with exit code 1",
        "rank_failed",
        "task 3 on n1: Exited with exit code 1",
    ),
    ("srun: error: n1: tasks 0-7: Killed", "rank_failed", "task 0-7 on n1: Killed"),
    (
        "E1121 04:00:00.000 12 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) "
        "local_rank: 3 (pid: 77) of binary: python",
        "rank_failed",
        "local rank 3 ended with exit code -9",
    ),
    ("  traceback : Signal 9 (SIGKILL) received by PID 77", "rank_failed", "signal 9 (SIGKILL)"),
    ("SignalException: Process 77 got signal: 15", "rank_failed", "signal 15"),
    ("Fatal Python error: Segmentation fault", "crash", "the Python interpreter crashed: Segmentation fault"),
    ("[n1:77] Caught signal 11 (Segmentation fault: address not mapped)", "crash", "a process crashed"),
    (
        "slurmstepd: error: pyxis:     [ERROR] No such file or directory: /shared/nvidia+nemo+25.04.sqsh",
        "not_started",
        "enroot finds no image /shared/nvidia+nemo+25.04.sqsh on the node",
    ),
    (
        "slurmstepd: error: pyxis:     [ERROR] Invalid argument: /shared/nvidia+nemo+25.04.sqsh",
        "not_started",
        "enroot finds no image /shared/nvidia+nemo+25.04.sqsh on the node",
    ),
    (
        "slurmstepd: error: pyxis:     [ERROR] File already exists: /var/tmp/enroot/pyxis_9.0",
        "not_started",
        "enroot: File already exists: /var/tmp/enroot/pyxis_9.0",
    ),
    (
        "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /scratch at /run/x: No such device",
        "not_started",
        "enroot: failed to mount: /scratch at /run/x: No such device",
    ),
    (
        "slurmstepd: error: pyxis:     FATAL ERROR: File system corruption detected",
        "not_started",
        "the image cannot be unpacked: File system corruption detected",
    ),
    (
        "slurmstepd: error: pyxis: --container-mounts: source path does not exist: /archive/saved",
        "not_started",
        "the folder /archive/saved, which the container mounts, is not there",
    ),
    (
        "slurmstepd: error: pyxis: couldn't chdir to /shared/x: Permission denied",
        "not_started",
        "the job's folder /shared/x cannot be entered in the container: Permission denied",
    ),
    (
        "srun: unrecognized option '--container-image=/shared/images/nemo.sqsh'",
        "not_started",
        "srun has no pyxis there: it does not know --container-image",
    ),
    (
        "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
        "not_started",
        "srun has no MPI of type pmix there: have it installed, or write mpi: none into the cluster's file",
    ),
    ("RuntimeError: found NaN in local grad norm for bucket #0", "nan_grad_norm", "became NaN"),
    ("OSError: [Errno 28] No space left on device", "disk_full", "No space left on device"),
]


def problems(text: str) -> dict[str, Problem]:
    return {problem.kind: problem for problem in read_chunks([text.encode()]).problems}


@pytest.mark.parametrize(
    ("line", "kind", "words"), LINES, ids=[f"{kind}-{words[:20]}" for _, kind, words in LINES]
)
def test_the_cause_of_a_run_that_died(line: str, kind: str, words: str) -> None:
    found = problems("".join(map(line_forms.nemo2, range(30))) + line + "\n")
    assert set(found) == {kind, "short"}
    assert words in found[kind].message
    assert found[kind].fatal


def test_the_cause_comes_before_what_follows_from_it() -> None:
    log = read_chunks(["".join(map(line_forms.nemo2, range(30))).encode() + OOM.encode()])
    assert [problem.kind for problem in log.problems] == ["cuda_out_of_memory", "short"]


def test_why_comes_before_how_a_rank_ended() -> None:
    """The node's words reach srun's output behind its own sentence."""
    log = read_chunks(
        [
            b"srun: error: n1: task 0: Exited with exit code 1\n"
            b"slurmstepd: error: pyxis:     [ERROR] Invalid image format: /shared/nemo.sqsh\n"
        ]
    )
    assert [problem.kind for problem in log.problems] == ["not_started", "rank_failed", "no_steps"]


def test_the_same_cause_on_many_ranks_is_named_once() -> None:
    assert problems(f"{NCCL}\n" * 12)["nccl_timeout"].message.endswith("(and 11 more such lines)")


@pytest.mark.parametrize("line", [line for line, _, _ in LINES if "local grad norm" not in line])
def test_what_fails_after_the_last_step_is_a_remark(line: str) -> None:
    """All step times are there."""
    found = problems("".join(map(line_forms.nemo2, range(50))) + line + "\n")
    assert len(found) == 1
    assert not any(problem.fatal for problem in found.values())


def test_a_gradient_that_became_nan_spoils_the_numbers_wherever_it_is_printed() -> None:
    line = "RuntimeError: found NaN in local grad norm for bucket #0\n"
    assert problems("".join(map(line_forms.nemo2, range(50))) + line)["nan_grad_norm"].fatal


def test_what_pyxis_says_of_a_job_that_was_cancelled_is_no_cause() -> None:
    """Cancelled while its image is unpacked: every line that pyxis writes then is called an error."""
    found = problems(
        "slurmstepd: error: *** STEP 23.0 ON n1 CANCELLED AT 2026-11-22T09:42:15 ***\n"
        "slurmstepd: error: pyxis: child 7240 terminated with signal 15\n"
        "slurmstepd: error: pyxis: failed to create container filesystem for image: /shared/nemo.sqsh\n"
        "slurmstepd: error: pyxis: printing enroot log file:\n"
        "slurmstepd: error: pyxis:     [INFO] Extracting squashfs filesystem...\n"
        "slurmstepd: error: pyxis: container was not started successfully by another task\n"
        "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
    )
    assert set(found) == {"cancelled", "no_steps"}


@pytest.mark.parametrize(
    "harmless",
    [
        "expecting a JSON file, got YAML",
        "NCCL INFO out of memory regions: 0",
        "ValueError: caught and retried",
        "srun: error: ",
        "pyxis: importing docker image: nvidia/nemo:25.04",
        "see https://huggingface.co/docs for help",
    ],
)
def test_words_by_chance_are_no_failure(harmless: str) -> None:
    assert problems("".join(map(line_forms.nemo2, range(50))) + harmless + "\n") == {}


def test_a_traceback_is_told_by_its_exception() -> None:
    text = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "train.py", line 3, in <module>\n'
        "[rank3]:     raise ValueError('x')\n"
        "[rank3]: megatron.core.MegatronError: tensor parallel 3 does not divide 8 heads\n"
    )
    assert problems(text)["traceback"].message == (
        "Python traceback: megatron.core.MegatronError: tensor parallel 3 does not divide 8 heads"
    )


def test_a_traceback_that_a_known_cause_explains_is_not_named_again() -> None:
    assert set(problems(f"Traceback (most recent call last):\n  File x\n{OOM}\n")) == {
        "cuda_out_of_memory",
        "no_steps",
    }


def test_a_traceback_without_a_known_exception_is_still_named() -> None:
    assert problems("Traceback (most recent call last):\n  File x\nKeyboardInterrupt\n")["traceback"].fatal


def test_what_is_quoted_can_be_printed() -> None:
    text = "Traceback (most recent call last):\nValueError: \x1b[31mred\x1b]0;title\x07\udcff\n"
    message = read_chunks([text.encode("utf-8", "surrogateescape")]).problems[0].message
    assert message.isprintable()
    assert "red" in message
