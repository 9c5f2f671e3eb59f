"""Which cause of a failure is named first: the order in time, and who followed; no single words."""

import pytest
from logs.line_forms import megatron_bridge, read_chunks, torchtitan

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
TERMINATING = "srun: Terminating StepId=4242.0\n"
STEP_CANCELLED = "slurmstepd: error: *** STEP 4242.0 ON node1 CANCELLED AT 2026-05-12T10:00:40 ***\n"
JOB_CANCELLED = "slurmstepd: error: *** JOB 77 ON node1 CANCELLED AT 2026-05-12T10:08:00 ***\n"
TIME_LIMIT = "slurmstepd: error: *** STEP 5.0 ON {} CANCELLED AT 2026-05-12T18:00:00 DUE TO TIME LIMIT ***\n"


def read(*lines, max_steps=None):
    """Read a log at once and line by line, which has to show the same."""
    text = "".join(lines).encode()
    log = read_chunks([text], max_steps=max_steps)
    assert read_chunks(text.splitlines(keepends=True), max_steps=max_steps).problems == log.problems
    return log


def megatron(first=1, last=5, *, total=100):
    return "".join(megatron_bridge(iteration, total=total) for iteration in range(first, last + 1))


def titan(first=1, last=3):
    return "".join(torchtitan(step) for step in range(first, last + 1))


def first(log):
    """Return the message of the first problem, which must be fatal."""
    assert log.problems[0].fatal
    return log.problems[0].message


@pytest.mark.parametrize(
    "how",
    [
        *("Killed", "Bus error (core dumped)", "Segmentation fault", "Aborted"),
        *("Exited with exit code 137", "Exited with exit code 139"),
    ],
)
@pytest.mark.parametrize("node", ["node3", "pool0-0017", "gb-nvl-024.cluster.local"])
@pytest.mark.parametrize("task", ["17", "16-23"])
def test_the_node_whose_task_a_signal_ended_is_named_before_those_that_exited(how, node, task):
    died = f"srun: error: {node}: task{'s' if '-' in task else ''} {task}: {how}\n"
    exited = (
        "srun: error: node1: tasks 0-7: Exited with exit code 1\n"
        "srun: error: node2: tasks 8-15: Exited with exit code 1\n"
    )
    for log in (read(megatron(), died, exited), read(megatron(), exited, died), read(died, exited)):
        assert f"task {task} on {node}: {how}" in first(log)


def test_what_srun_ends_itself_follows_from_the_task_before():
    exited = "srun: error: node2: task 9: Exited with exit code 1\n"
    ended = "srun: error: node1: tasks 0-7: Killed\nsrun: error: node3: tasks 16-23: Terminated\n"
    log = read(megatron(), exited, TERMINATING, STEP_CANCELLED, ended)
    assert first(log) == "srun: task 9 on node2: Exited with exit code 1"


@pytest.mark.parametrize("code", [134, 141, 143])
def test_an_exit_code_with_which_a_process_ends_itself_says_no_more_than_another(code):
    """The reason stands elsewhere: an abort, a pipe that broke, a launcher that ended its processes."""
    died = f"srun: error: node3: task 17: Exited with exit code {code}\n"
    why = f"{TRACEBACK}ConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert "ConnectionResetError" in first(read(megatron(), why, died))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[n1:446  :0:446] Caught signal 11 (Segmentation fault: address not mapped)", "signal 11 (SIGSEGV)"),
        ("[n1:00077] Signal: Bus error (7)", "Bus error"),
    ],
)
def test_the_node_of_a_crash_is_named(line, says):
    assert first(read(megatron(), f"{line}\n")).endswith(f"{says} (on n1)")


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (0, 50_000), (100, 50_000), (100, 0)])
def test_a_sign_is_found_in_a_line_of_any_length(before, behind):
    sign = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."
    log = read(megatron(), f"{'x ' * before}{sign}{' x' * behind}\n")
    assert first(log) == "CUDA out of memory: 20.00 GiB could not be allocated"


def test_an_exception_is_told_before_the_signals_that_ended_the_others():
    log = read(megatron(), TRACEBACK, "ValueError: heads\n", "srun: error: node1: tasks 1-7: Killed\n")
    assert first(log) == "Python traceback: ValueError: heads"


def test_whoever_lost_its_peer_followed():
    """The rank that was killed prints nothing; its peers print exceptions and warnings."""
    killed = "srun: error: node3: task 17: Killed\n"
    peers = (
        "node1:77:99 [2] NCCL WARN socketProgress: Connection closed by remote peer node3<4711>\n"
        f"[rank2]: {TRACEBACK.replace(chr(10) + ' ', chr(10) + '[rank2]: ')}"
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:133, remote process "
        "exited or there was a network error, NCCL version 2.27.5\n"
    )
    for log in (read(megatron(), killed, peers), read(megatron(), peers, killed)):
        assert first(log).startswith("srun: task 17 on node3: Killed")


def test_what_follows_a_person_or_a_limit_is_no_cause():
    ended = f"[rank3]: {TRACEBACK}torch.distributed.elastic.SignalException: Process 7 got signal: 15\n"
    for end, says in ((JOB_CANCELLED, "cancelled at"), (TIME_LIMIT.format("node1"), "time limit")):
        log = read(megatron(), end, ended, "srun: error: node1: task 3: Killed\n")
        assert says in first(log)


def test_the_kernels_killing_explains_what_was_printed_before():
    log = read(
        megatron(),
        "srun: error: node3: task 17: Killed\n",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM "
        "Killed.\n",
    )
    assert first(log) == "the host ran out of memory, and the kernel killed a process (on node3)"


# Training went on


THREAD = "Exception in thread NetStatThr:\n" + TRACEBACK + "BrokenPipeError: [Errno 32] Broken pipe\n"
IGNORED = "Exception ignored in: <function Loader.__del__ at 0x7f>\n" + TRACEBACK + "OSError: no such file\n"
HUB = (
    "[rank0]: WARNING huggingface_hub: HTTP Error 429 thrown while requesting HEAD: 429 Client Error: Too "
    "Many Requests for url: https://huggingface.co/x/config.json. Retrying.\n"
)


@pytest.mark.parametrize("sign", [THREAD, HUB, TRACEBACK + "ValueError: in a callback\n"])
def test_a_sign_that_training_survived_is_a_remark(sign):
    still_running = read(megatron(1, 5), sign, megatron(6, 50))
    assert {problem.kind for problem in still_running.problems if problem.fatal} == {"short"}
    assert any("training went on after this: " in problem.message for problem in still_running.problems)
    assert "cancelled" in first(read(megatron(1, 5), sign, megatron(6, 50), JOB_CANCELLED))


def test_a_step_of_a_rank_that_lags_behind_does_not_make_an_exception_harmless():
    log = read(megatron(1, 5), f"[rank3]: {TRACEBACK}", "[rank3]: ValueError: heads\n", megatron(6, 6))
    assert first(log) == "Python traceback: ValueError: heads (rank 3)"


@pytest.mark.parametrize("aside", [THREAD, IGNORED])
def test_an_exception_that_ends_no_process_comes_behind_what_ended_it(aside):
    log = read(megatron(), aside, "srun: error: node2: task 9: Bus error\n")
    assert "node2" in first(log)


# Warnings of NCCL, and hangs

PORT = "{}:3405{}:3412{} [{}] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n\n"


@pytest.mark.parametrize(
    "prefix", ["", "2026-05-12T16:13:44.884Z: [1,12]<stdout>:", "[2026-05-12 10:03:02] "]
)
def test_a_warning_of_nccl_explains_a_hang(prefix):
    ports = "".join(prefix + PORT.format("node48", gpu, gpu, gpu) for gpu in range(8))
    log = read(megatron(), ports, TIME_LIMIT.format("node48"))
    rank = "rank 12, " if "[1,12]" in prefix else ""
    where = f"({rank}GPU 0, 1, 2, 3, 4, 5, 6, 7 on node48)"
    assert first(log) == f"NCCL warned: NET/IB : Got async event : port error {where}"
    assert "time limit" in log.problems[1].message


def test_a_warning_of_nccl_explains_an_error_of_nccl_but_no_other_exception():
    warned = (
        "node2:3311:3500 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed "
        "out, on dev mlx5_1:1\n"
    )
    nccl = f"[rank13]: {TRACEBACK}[rank13]: RuntimeError: NCCL Error 2: unhandled system error\n"
    assert "ibv_modify_qp" in first(read(megatron(), warned, nccl))
    assert "ValueError" in first(read(warned, f"{TRACEBACK}ValueError: heads\n"))


def test_a_warning_of_nccl_in_a_training_that_went_well_is_not_told():
    assert read(PORT.format("n1", 0, 0, 0), megatron(1, 5, total=5)).problems == ()


def test_the_rank_that_the_flight_recorder_names_is_told():
    log = read(
        titan(),
        "[rank0]:[E804 23:05:54.8 ProcessGroupNCCL.cpp:1914] [PG ID 0 Rank 0] Received a dump "
        "signal due to a collective timeout from  rank 13 and we will try our best to dump the debug info.\n"
        "[rank0]:[E804 23:05:54.9 ProcessGroupNCCL.cpp:1628] [Rank 0] preparing to dump debug info.\n",
    )
    assert first(log).startswith("a collective timeout on rank 13")


# Ends that no entry of the list describes


@pytest.mark.parametrize("tick", ["`{}'", "'{}'", "`{}`", '"{}"'])
def test_the_assertion_of_a_library_is_named(tick):
    quoted = tick.format("args.ptr != nullptr")
    log = read(
        megatron(1, 3),
        f"python3: /opt/DeepEP/csrc/permute.cu:412: void launcher(Args): Assertion {quoted} failed.\n",
        "srun: error: node3: task 17: Aborted (core dumped)\n",
        TERMINATING,
        STEP_CANCELLED,
    )
    assert first(log) == "the assertion args.ptr != nullptr failed (permute.cu:412)"
    assert "task 17 on node3: Aborted" in log.problems[1].message


@pytest.mark.parametrize(
    "line",
    [
        "DeepEP timeout check failed: rank = 6, thread = 0, value = 0)",
        "[rank6]: FATAL: the fabric manager is not running",
        "6: 2026-05-12 10:00:00 - ERROR - cannot attach to the shared store",
        "[rank6]:[E512 10:00:00.5 Foo.cpp:12] lookup of the handle failed",
        "6: 2026-05-12 10:00:05,123 ERROR train.controller: attempt 0 ended",
        "[rank6]:RuntimeError: a traceback that another writer began",
        "/src/transport/ibrc.cpp:1433: non-zero status: 7 ep_connect failed of rank 6",
    ],
)
def test_the_first_error_line_after_the_last_step_is_quoted(line):
    log = read("ERROR: an old remark\n", megatron(), f"{line}\n", "ERROR: cleaning up failed\n")
    assert first(log).startswith("an error line of the log: ")
    assert line[-20:] in first(log)
    assert first(log).endswith("(rank 6)")
    assert line in log.excerpt


def test_before_the_first_step_the_last_error_line_is_quoted():
    log = read(
        "ERROR: no apex, going on without\n",
        *["reading the index\n"] * 80,
        "bash: torchrun: command not found\n",
    )
    assert first(log) == "an error line of the log: bash: torchrun: command not found"


@pytest.mark.parametrize(
    "harmless", ["[INFO] 0 errors", "WARNING: error: retried", "DEBUG | error: none", "no error: fine"]
)
def test_a_line_of_no_severity_is_not_quoted(harmless):
    assert {problem.kind for problem in read(megatron(), f"{harmless}\n").problems} == {"short"}


def test_an_error_line_is_only_quoted_if_nothing_explains_the_end():
    log = read(megatron(), "ERROR: something\n", f"{TRACEBACK}ValueError: heads\n")
    assert "error_line" not in {problem.kind for problem in log.problems}
    cancelled = read(megatron(), "ERROR: something\n", JOB_CANCELLED)
    assert "cancelled" in first(cancelled)
    assert read("ERROR: something\n", megatron(1, 5, total=5)).problems == ()


WAITED = (
    "DeepEP combine (scale-up wait) timeout, scale-out: 6/8, channel: 3, recv: 0, tail: -1 (wait=0)\n"
    "DeepEP timeout check failed: rank = 6, thread = 0, value = 0)\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "Host key verification failed.",
        "/src/transport/ibgda.cpp:2234: NULL value Unable to create ah.",
        "cannot attach to the shared store",
        "couldn't open the shared store",
        "could not open the shared store",
        "connect to store-0 port 29500: Connection refused",
        "open /dev/fabric: permission denied",
        "exec launch.sh: no such file or directory",
        "*** An error occurred in MPI_Init_thread",
    ],
)
def test_a_line_without_a_severity_is_quoted_only_if_a_process_exited(line):
    exited = "srun: error: node1: task 3: Exited with exit code 255\n"
    for steps in ("", megatron()):
        assert first(read(steps, f"{line}\n", exited)) == f"an error line of the log: {line}"
    assert "error_line" not in {problem.kind for problem in read(megatron(), f"{line}\n").problems}
    with_severity = read(megatron(), f"{line}\n", "ERROR: the store is gone\n", exited)
    assert "the store is gone" in first(with_severity)


def test_a_passage_of_error_lines_is_told_by_its_first_line():
    """A library's functions print what failed from the innermost to the outermost."""
    log = read(
        "ERROR: no apex, going on without\n",
        *["reading the index\n"] * 80,
        "transport.cpp:275: init failed for transport: IBGDA\n",
        "init.cu:995: non-zero status: 7 detect topo failed\n",
        "init.cu:1080: initialization failed, exiting\n",
    )
    assert "init failed for transport: IBGDA" in first(log)


@pytest.mark.parametrize(
    "aborted",
    [
        "srun: error: n1: task 2: Aborted (core dumped)",
        "  exitcode  : -6 (pid: 7)",
        "mpirun noticed that process rank 3 with PID 7 on node n1 exited on signal 6 (Aborted).",
    ],
)
@pytest.mark.parametrize(
    "why",
    [
        "Memory access fault by GPU node-2 (Agent handle: 0x5a5c)",
        "Transport retry count exceeded on mlx5_0:1/IB",
    ],
)
def test_a_process_that_aborts_says_why_before(aborted, why):
    assert why in first(read(megatron(), f"{why}\n{aborted}\n"))


@pytest.mark.parametrize(
    "then",
    [
        f"[rank12]: {TRACEBACK}[rank12]: torch.AcceleratorError: CUDA error: unspecified launch failure\n",
        TIME_LIMIT.format("n1"),
        "srun: error: n1: task 3: Killed\n",
    ],
)
def test_a_wait_that_timed_out_is_told_before_what_followed(then):
    assert "DeepEP combine (scale-up wait) timeout" in first(read(titan(), WAITED, then))


def test_slurms_own_words_of_why_it_ended_a_job_are_told_before_the_end():
    said = "slurmstepd: error: Job 7518 exceeded memory limit (626359956 > 512000000), being killed\n"
    assert "exceeded memory limit" in first(read(megatron(), said, JOB_CANCELLED))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            f"{TRACEBACK}OSError: [Errno 5] Input/output error\n\nThe above exception was the direct cause "
            f"of the following exception:\n\n{TRACEBACK}RuntimeError: the checkpoint of step 9 is cut\n",
            "RuntimeError: the checkpoint of step 9",
        ),
        (
            f"{TRACEBACK}triton.runtime.errors.OutOfResources: out of resource: error\n",
            "errors.OutOfResources",
        ),
        ("srun: error: gpu001: task 0: Out Of Memory\n", "the kernel killed task 0 on gpu001"),
        (
            "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n",
            "died",
        ),
        (
            "(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: SIGKILL\n",
            "Raylet is terminated. Termination is unexpected.",
        ),
        (
            "docker: Error response from daemon: could not select device driver\n",
            "could not select device driver",
        ),
        (
            "slurmstepd: error: pyxis: mkdir: cannot create directory '/run/enroot': Permission denied\n"
            "slurmstepd: error: pyxis: couldn't start container\n",
            "cannot create directory '/run/enroot'",
        ),
        ("srun: error: Prolog failed on node gpu-12, check your job prolog\n", "gpu-12"),
        (
            "GPU 00000000:04:00.0: Detected Critical Xid Error\n"
            f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered\n",
            "a GPU failed: GPU 00000000:04:00.0: Detected Critical Xid Error",
        ),
        (
            "22: slurmstepd: error: pyxis:      347 Segmentation fault (core dumped) | pwck -R /etc/shadow\n"
            "22: slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: process failed\n"
            "22: slurmstepd: error: pyxis:     [ERROR] hooks.d/98-nvidia.sh exited with return code 1\n",
            "enroot: nvidia-container-cli: ldcache error",
        ),
        (
            f"{TRACEBACK}torch.distributed.DistNetworkError: The client socket has timed out after 300000ms "
            "while trying to connect to (036c56dce41b, 41331).\n[cosmos] - ERROR - Process 1 failed\n",
            "trying to connect to (036c56dce41b, 41331)",
        ),
        (
            f"{TRACEBACK}RuntimeError: [enforce fail at container.cc:664] . unexpected pos 704 vs 598\n"
            f"{TRACEBACK}OSError: [Errno 28] No space left on device\n",
            "No space left on device",
        ),
    ],
)
def test_ends_of_public_reports(lines, says):
    assert says in first(read(megatron(), lines))


# Places


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("", "(rank 29)"),
        ("192.168.13.81: ", "(rank 29 on 192.168.13.81)"),
        ("(Worker pid=97, ip=33.97.231.144) ", "(rank 29 on 33.97.231.144)"),
    ],
)
def test_a_rank_whose_watchdog_found_an_error_is_named_as_torch_labels_it(prefix, says):
    """The rank in the text counts within a group, and the line behind it has no label."""
    text = "[PG ID 5 Rank 1] Process group watchdog thread terminated with exception: CUDA error: unspecified"
    thrown = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    line = f"{prefix}[rank29]:[E1002 12:20:55.1 ProcessGroupNCCL.cpp:1923] {text}\n"
    log = read(megatron(), line, f"{thrown}  what():  {text}\n")
    assert first(log).startswith(f"a process crashed: CUDA error: unspecified {says}")


def test_all_nodes_that_failed_to_launch_are_named():
    failed = "".join(
        f"srun: error: Task launch for StepId=20.0 failed on node p4d-{number}: Socket timed out\n"
        for number in (33, 38, 35)
    )
    log = read(
        failed, "srun: error: Application launch failed: Socket timed out\n", "srun: Job step aborted\n"
    )
    assert "on p4d-33, p4d-38, p4d-35: " in first(log)


@pytest.mark.parametrize(
    "label",
    [
        *(
            "[rank{}]: ",
            "{}: ",
            "2025-10-31 03:11:02,478 - Tuner - INFO - [rank{}]: ",
            "[default{}]:[rank{}]: ",
            "[1,{}]<stderr>: ",
        ),
        *("i.pretrain/0 [default{}]:[rank{}]:", "2026-05-12T10:00:00.123456789Z [rank{}]: "),
        *(
            "[2026-05-12 10:00:00] [rank{}]: ",
            "2026-05-12T16:13:44.884Z: [1,{}]<stdout>:",
            "10.1.2.3: [rank{}]: ",
        ),
    ],
)
def test_the_ranks_that_print_a_cause_are_named(label):
    labels = [label.replace("{}", str(rank)) for rank in (2, 5)]
    lines = "".join(f"{each}torch.OutOfMemoryError: CUDA out of memory.\n" for each in labels)
    node = " on 10.1.2.3" if label.startswith("10.1.2.3") else ""
    assert first(read(megatron(), lines)) == f"CUDA out of memory (ranks 2, 5{node})"


def test_the_text_behind_last_error_is_found_though_ranks_without_labels_print_at_once():
    raised = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1287, invalid usage, NCCL "
        "version 2.17.1\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\n"
    )
    said = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\n"
    assert first(read(TRACEBACK, TRACEBACK, raised, raised, said, said)).startswith(f"NCCL: {said[:-1]}")


@pytest.mark.parametrize("label", ["[rank218]:", "218: "])
def test_torchs_label_is_the_rank_and_not_that_in_a_group(label):
    caught = "Watchdog caught collective operation timeout: WorkNCCL(OpType=SEND, Timeout(ms)=600000)"
    assert "SEND of rank 218 took" in first(read(megatron(), f"{label}[E108 x.cpp:6] [Rank 13] {caught}\n"))


def test_the_rank_of_a_message_is_in_its_first_line():
    message = (
        "[rank1]:[E415 21:17:08.9 x.cpp:552] [Rank 1] Collective WorkNCCL raised: NCCL error: remote process "
        "exited\nncclRemoteError: A call failed.\nLast error:\nsocketProgress: Connection closed\n"
    )
    assert first(read(megatron(), message)) == "NCCL: socketProgress: Connection closed (rank 1)"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "slurmstepd: error: pyxis: seccomp filter failed: Function not implemented\n",
            "seccomp filter failed",
        ),
        (
            "sbatch: error: Memory specification can not be satisfied\n",
            "could not start the training: Memory",
        ),
        (
            "/var/spool/slurmd/job7/slurm_script: line 28:  8156 Killed                  python3 main.py\n",
            "a command of a script ended: Killed (SIGKILL",
        ),
        (
            "launch.sh: line 3:    12 Bus error               (core dumped) python train.py\n",
            "a command of a script ended: Bus error",
        ),
    ],
)
def test_starts_that_fail_without_sruns_usual_words(line, says):
    rest = "slurmstepd: error: pyxis: couldn't start container\n" if "pyxis" in line else ""
    assert says in first(read(line, rest))


TABLE = """\
{0}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{0}Root Cause (first observed failure):
{0}[0]:
{0}  time      : 2026-05-12_10:01:03
{0}  host      : gpu-b07
{0}  rank      : 11 (local_rank: 3)
{0}  exitcode  : {1} (pid: 8403)
{0}  error_file: <N/A>
"""


@pytest.mark.parametrize("prefix", ["", "1: ", "[default0]:"])
@pytest.mark.parametrize(("code", "says"), [(1, "1"), (-9, "-9 (SIGKILL, most often for lack of memory)")])
def test_rank_and_node_are_those_of_torchruns_table(prefix, code, says):
    failed = (
        f"{prefix}E0512 api.py:874] failed (exitcode: {code}) local_rank: 3 (pid: 8403) of binary: python\n"
    )
    log = read(megatron(), failed, TABLE.format(prefix, code))
    assert first(log).startswith(f"a rank ended with exit code {says} (rank 11 on gpu-b07)")


FAILURE = """\
{0}[{1}]:
{0}  time      : 2026-11-30_10:03:25
{0}  host      : gpu-b0{2}
{0}  rank      : {2} (local_rank: {2})
{0}  exitcode  : {3} (pid: 74{2})
{0}  error_file: <N/A>
{0}  traceback : Signal received by PID 74{2}
"""
ROOT_CAUSE = "{0}Root Cause (first observed failure):\n" + FAILURE


@pytest.mark.parametrize("prefix", ["", "1: ", "[default0]:"])
@pytest.mark.parametrize("others", [1, 40])
def test_the_first_failure_that_torchrun_saw_is_told_and_not_those_that_it_ended_itself(prefix, others):
    ended = "".join(FAILURE.format(prefix, 1 + other, 2 + other, -15) for other in range(others))
    table = f"{prefix}Failures:\n{ended}{'-' * 53}\n"
    message = first(read(megatron(), table, ROOT_CAUSE.format(prefix, 0, 1, -6)))
    assert message == "a rank ended with exit code -6 (SIGABRT) (rank 1 on gpu-b01)"


@pytest.mark.parametrize("code", [-6, 3])
@pytest.mark.parametrize("lost", [("0", "3"), ("1", "3")])
def test_a_rank_that_ended_without_a_word_comes_before_connections_that_others_lost(code, lost):
    """Rank 1 aborts; but if it lost a connection itself, that is why it ended."""
    closed = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:51340.\n"
    said = "".join(f"[rank{rank}]: {TRACEBACK}[rank{rank}]: {closed}" for rank in lost)
    table = ROOT_CAUSE.format("", 0, 1, code)
    message = first(read(megatron(), said, table))
    assert message.startswith("Python traceback" if "1" in lost else f"a rank ended with exit code {code}")


@pytest.mark.parametrize(
    ("tasks", "is_first"),
    [("1", True), ("1-2", True), ("1,5-6", True), ("0-7", False), ("2,3", False), ("0-999999999999", False)],
)
def test_so_does_a_task_that_srun_saw_ending(tasks, *, is_first):
    closed = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:51340.\n"
    ended = f"srun: error: n1: tasks {tasks}: Aborted (core dumped)\n"
    message = first(read(megatron(), f"[rank3]: {TRACEBACK}[rank3]: {closed}", ended))
    assert message.startswith(f"srun: task {tasks} on n1: Aborted" if is_first else "Python traceback: ")


@pytest.mark.parametrize("exited", ["torchrun", "srun"])
@pytest.mark.parametrize(("late", "is_cause"), [(2, True), (50, True), (150, False)])
def test_an_exception_before_the_step_lines_that_rank_0_held_back_is_the_cause(exited, late, *, is_cause):
    table = ROOT_CAUSE.format("", 0, 2, 1)
    says = table if exited == "torchrun" else "srun: error: n1: task 2: Exited with exit code 1\n"
    raised = f"[rank2]: {TRACEBACK}[rank2]: ValueError: heads\n"
    log = read(megatron(total=900), raised, megatron(6, 5 + late, total=900), says)
    assert first(log).startswith("Python traceback: ValueError: heads (rank 2") == is_cause
    # Not if the rank printed later why it ended, or if another one ended.
    why = "[rank2]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    later = read(megatron(), raised, megatron(6, 9), f"[rank2]: {TRACEBACK}{why}", says)
    assert "unspecified launch failure" in first(later)
    other = read(megatron(), raised.replace("rank2", "rank1"), megatron(6, 9), says)
    assert "heads" not in first(other)


def test_a_process_that_ends_itself_without_an_exception_is_told():
    """A destructor of torch's does so if the program ends before its process group is destroyed."""
    says = "terminate called without an active exception"
    log = read(megatron(), f"{says}\n", TABLE.format("", -6))
    assert first(log) == f"a process crashed: {says}"


def test_torchruns_table_names_the_rank_of_the_traceback_in_it():
    table = TABLE.format("", 1).replace("<N/A>\n", "error.json\n  traceback : ")
    log = read(megatron(), table, TRACEBACK.replace("\n", "\n  "), "RuntimeError: mat2 has a stride\n")
    assert first(log) == "Python traceback: RuntimeError: mat2 has a stride (rank 11 on gpu-b07)"


@pytest.mark.parametrize(
    "node_line",
    [
        TABLE.format("", 1),
        "ERROR:rerun_state_machine:Rank 11, node gpu-b07, device 3, iteration #3: rerun: nan\n",
        "[rank11]: gpu-b07:77:99 [3] NCCL INFO comm 0x1 rank 11 ncclCommInit Error 5\n"
        "[rank11]: gpu-b07:77:99 [3] misc/socket.cc:93 NCCL WARN Net: no route\n",
    ],
)
def test_a_node_that_any_line_names_for_a_rank_is_told_with_it(node_line):
    log = read(megatron(), f"[rank11]: {TRACEBACK}[rank11]: ValueError: heads\n", node_line)
    assert first(log) == "Python traceback: ValueError: heads (rank 11 on gpu-b07)"


def test_a_rank_that_the_words_name_is_told():
    found = "Unexpected result nan on rank 3 at iteration #3 (message='found NaN in local grad norm')"
    assert "NaN in the backward pass (rank 3)" in first(read(megatron(), f"ERROR:rerun:{found}\n"))
    raised = f"RuntimeError: Rank 3, node n7, device 3, iteration 4: {found}\n"
    assert "(rank 3 on n7)" in first(read(megatron(), TRACEBACK, raised))


# Launchers, and what several processes say


@pytest.mark.parametrize(
    "wrapper",
    [
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1.",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "ray.exceptions.ActorUnavailableError: The actor is unavailable",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 1",
    ],
)
def test_what_a_launcher_raises_of_its_processes_follows(wrapper):
    said = "[ERROR] [barrier.py:1458] Maximum number of nodes (4) exceeded.\n"
    for cause in (
        said,
        "srun: error: n1: task 3: Killed\n",
        f"[rank1]: {TRACEBACK}[rank1]: ValueError: heads\n",
    ):
        assert wrapper not in first(read(megatron(), TRACEBACK, f"{wrapper}\n", cause))
    assert wrapper in first(read(megatron(), TRACEBACK, f"{wrapper}\n"))


ACTOR = """\
{0}The actor died unexpectedly before finishing this task.
{0}\tclass_name: Worker
{0}\tpid: 79326
{0}\tip: 10.7.34.138
"""
DIED = f"{TRACEBACK}ray.exceptions.ActorDiedError: {ACTOR.format('')}"
NODE_DIED = "The actor died because its node has died. Node Id: b157c93de9603b1458ae4bd22668b46a\n"


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n",
            "ActorDiedError: The actor is dead because its worker process has died.",
        ),
        (
            "The actor is dead because its owner has died. Owner worker exit type: SYSTEM_ERROR Worker exit "
            "detail: Owner's node has crashed.\n",
            "Owner's node has crashed.",
        ),
        (
            f"{NODE_DIED}\tthe actor's node was terminated unexpectedly: too many heartbeats are missing\n",
            "a node failed, says Ray: too many heartbeats are missing",
        ),
    ],
)
def test_why_an_actor_of_rays_died_is_told_with_its_node(reason, says):
    message = first(read(megatron(), DIED, reason))
    assert says in message
    assert message.endswith("(on 10.7.34.138)")


@pytest.mark.parametrize("prefix", ["", "(TrainController pid=79312) "])
@pytest.mark.parametrize("how", ["preempted: the node drains", "terminated expectedly: received SIGTERM"])
def test_a_node_that_was_taken_away_under_ray_explains_what_followed(prefix, how):
    follows = f"{TRACEBACK}RuntimeError: Worker group is not active.\n"
    lines = f"{ACTOR.format('')}{NODE_DIED}\tthe actor's node was {how}\n{follows}"
    log = read(megatron(), "".join(f"{prefix}{line}\n" for line in lines.splitlines()))
    assert log.problems[0].kind == "preempted"
    assert first(log) == f"a node was taken away, says Ray: {how.partition(': ')[2]} (on 10.7.34.138)"


@pytest.mark.parametrize(
    "line",
    [
        "job failed: WorkloadEvictedDueToPreempted: Preempted to accommodate a higher priority Workload",
        "the spot instance was preempted at 10:00:00",
    ],
)
def test_a_pod_that_was_taken_away_is_told(line):
    assert "a node or pod was taken away" in first(read(megatron(), f"{line}\n"))


def test_a_request_that_an_engine_preempted_is_no_cause():
    line = "WARNING Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode: no space in the cache\n"
    assert {problem.kind for problem in read(megatron(), line).problems} == {"short"}


@pytest.mark.parametrize("daemon", ["[prterun-n1-1918870@0,1]", "[[64112,0],1]"])
def test_the_node_whose_daemon_mpirun_lost_is_named(daemon):
    lost = f"PRTE has lost communication with a remote daemon.\n\n  Remote daemon: {daemon} on node n7\n"
    peer = f"{TRACEBACK}RuntimeError: [gloo] Connection closed by peer [10.0.0.7]\n"
    assert first(read(megatron(), peer, lost)).startswith("mpirun lost n7: ")


@pytest.mark.parametrize("link", ["direct cause of the following", "During handling of the above"])
def test_a_chain_tells_its_first_exception_if_that_has_words(link):
    then = f"\nThe above exception: {link}\n\n{TRACEBACK}RuntimeError: DataLoader worker exited\n"
    killed = read(TRACEBACK, "RuntimeError: worker (pid 9382) is killed by signal: Killed. \n", then)
    assert first(killed) == (
        "Python traceback: RuntimeError: DataLoader worker exited (after: RuntimeError: worker (pid 9382) is "
        "killed by signal: Killed.)"
    )
    assert (
        first(read(TRACEBACK, "KeyError: 'x'\n", then))
        == "Python traceback: RuntimeError: DataLoader worker exited"
    )


def test_the_ranks_of_a_common_traceback_are_named():
    log = read(
        TRACEBACK,
        "torch.distributed.checkpoint.api.CheckpointException: ranks:dict_keys([0, 4])\n",
        *(f"Traceback (most recent call last): (RANK {rank})\n  File\nAssertionError\n" for rank in (0, 4)),
    )
    assert first(log) == "Python traceback: AssertionError (ranks 0, 4)"


DEATH = "W0920 09:10:41.1 84933 torch/elastic/api.py:719] Received {} death signal, shutting down workers\n"


@pytest.mark.parametrize(("number", "name"), [(1, "SIGHUP"), (2, "SIGINT"), (15, "SIGTERM")])
def test_a_signal_that_the_launcher_received_ended_the_training(number, name):
    raised = f"{TRACEBACK}torch.distributed.elastic.SignalException: Process 84933 got signal: {number}\n"
    for rest in ("", raised, f"{TRACEBACK}torch.api.RendezvousClosedError\n"):
        assert f"the launcher received signal {number} ({name}" in first(
            read(megatron(), DEATH.format(number), rest)
        )
    assert "time limit" in first(read(megatron(), DEATH.format(number), TIME_LIMIT.format("n1")))
    before = f"[rank1]: {TRACEBACK}[rank1]: ValueError: heads\n"
    assert "heads" in first(read(megatron(), before, DEATH.format(number)))


def test_long_identifiers_do_not_hide_the_rest_of_a_line():
    log = read(
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. To "
        "troubleshoot the problem, check the logs for the dead worker. Lease ID: 040000004df23df1c4466bfcf "
        "Worker ID: cd7df84926662bde505bd4864a9431db7b Node ID: 6b5f36c96b4f115d27145e878466cc677e Worker IP "
        "address: 10.29.214.5 Worker port: 43447\n"
    )
    assert "Worker IP address: 10.29.214.5" in first(log)


# Silence before an end


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("2026-05-12T12:31:10", ", after 147 min without a line"),
        ("2026-05-12T10:04:40", ""),
        ("2026-05-12T18:04:50", ""),  # Slurm writes local times, a container often those of UTC
        ("2026-05-12T15:34:50", ""),
        ("2026-05-13T11:04:33", ", after 1500 min without a line"),
    ],
)
@pytest.mark.parametrize("due", ["", " DUE TO TIME LIMIT"])
def test_the_silence_before_an_end_is_told(end, says, due):
    lines = "".join(
        f"[2026-05-12 10:0{minute}:30] {megatron(minute, minute).strip()}\n" for minute in range(1, 5)
    )
    steps = lines.replace("[2025-12-19 10:49:15]", "[2026-05-12 10:04:30]")
    log = read(
        steps, "  scheduled a save\n", f"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT {end}{due} ***\n"
    )
    assert first(log).endswith(f"{end}{says}")


# Restarts inside one log

FAILED = "[rank3]: " + TRACEBACK + "[rank3]: torch.AcceleratorError: CUDA error: an illegal memory access\n"
LOADED = (
    " loading distributed checkpoint from /local/ckpt at iteration 30\n"
    "  successfully loaded checkpoint from /local/ckpt [ t 1/1, p 1/1 ] at iteration 30\n"
)


@pytest.mark.parametrize("failed_at", [30, 33])
def test_a_load_belongs_to_the_attempt_that_it_begins(failed_at):
    """The launcher restarts the ranks in the same log; perhaps no step is trained twice."""
    again = megatron(31, 50, total=50).replace("9090.1", "9095.5")
    log = read(megatron(1, failed_at, total=50), FAILED, LOADED, again)
    assert (log.mode, len(log.steps)) == ("performance", 50)
    assert not any(problem.fatal for problem in log.problems)
    assert any(
        problem.message.startswith("in an earlier attempt: Python traceback: torch.A")
        for problem in log.problems
    )


def test_a_failure_behind_a_load_is_of_the_attempt_that_it_begins():
    log = read(megatron(1, 33), FAILED, LOADED, f"[rank5]: {TRACEBACK}[rank5]: ValueError: no optimizer\n")
    assert first(log) == "Python traceback: ValueError: no optimizer (rank 5)"


def test_a_load_behind_the_end_of_training_begins_nothing():
    log = read(megatron(1, 5, total=5), "[after training is done] datetime: 2026\n", LOADED)
    assert {problem.kind for problem in log.problems} <= {"restart"}
    assert not any(problem.fatal for problem in log.problems)


def test_a_gpu_without_memory_is_told_before_the_peers_that_lost_it():
    """Lines of a report to NCCL (NVIDIA/nccl, issue 1235): GPU 3 had no memory, and GPU 0 lost its peer."""
    peer = (
        "n1:3025:6048 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1\n"
        "n1:3025:6048 [0] proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x55a5\n"
        "n1:3025:6048 [0] proxy.cc:1533 NCCL WARN [Service thread] Error encountered progressing "
        "operation=Connect, res=3, closing connection\n"
        "n1:3025:6048 [0] proxy.cc:1567 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from "
        "rank 1, retcode 3\n"
    )
    full = "n1:3028:6152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    for log in (read(megatron(), peer, full), read(megatron(), full, peer)):
        assert first(log) == "CUDA out of memory (GPU 3 on n1)"
        assert not any("Cuda failure" in problem.message for problem in log.problems)


def test_an_error_line_says_more_than_the_end_without_an_exception():
    error = "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at THC.cpp:265"
    log = read(megatron(), f"{error}\nterminate called without an active exception\n")
    assert first(log) == f"an error line of the log: {error}"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            "mpiexec noticed that process rank 5 with PID 77 on node gpu-3 exited on \nsignal 6 (Aborted).\n",
            "a process was ended by signal 6 (SIGABRT) (rank 5 on gpu-3)",
        ),
        (
            "=   PID 9665 RUNNING AT node12\n=   EXIT CODE: 9\n"
            "=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n====\n"
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n",
            "a process was ended by signal 9 (SIGKILL, most often for lack of memory) (on node12)",
        ),
        (
            "The first process to do so was:\n\n  Process name: [[54321,1],6]\n  Exit code:    3\n",
            "a process ended with exit code 3 (rank 6)",
        ),
        (
            "x1921c4s3b0n0: rank 4 died from signal 11 and dumped core\n",
            "rank 4 was ended by signal 11 (SIGSEGV) (on x1921c4s3b0n0)",
        ),
        (
            "[rank: 3] Child process with PID 7 terminated with code -9. Forcefully terminating all others\n",
            "a process ended with exit code -9 (SIGKILL, most often for lack of memory) (rank 3)",
        ),
    ],
)
def test_a_process_whose_end_only_a_launcher_tells_is_named_with_its_place(end, says):
    log = read(megatron(), end)
    assert first(log) == says


def test_torchruns_table_may_be_filled_up_with_blanks():
    table = "".join(f"{line:<98}\n" for line in TABLE.format("", -11).splitlines())
    assert first(read(megatron(), table)) == "a rank ended with exit code -11 (SIGSEGV) (rank 11 on gpu-b07)"
