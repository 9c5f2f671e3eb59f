"""Every failure the reader knows, in the words of the library that prints it."""

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs.reader import read_log

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
    (OOM, "cuda_out_of_memory", "2.00 GiB could not be allocated (GPU 3)"),
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
        "cannot be reached: https://huggingface.co: stage",
    ),
    (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): "
        "Max retries exceeded with url: /x",
        "hub_unreachable",
        "cannot be reached: huggingface.co: stage",
    ),
    (
        "OSError: Can't load tokenizer for 'meta-llama/Llama-3.1-8B'. If you were trying to load it from",
        "hub_unreachable",
        "cannot be reached: meta-llama/Llama-3.1-8B: stage the tokenizer",
    ),
    ("You are trying to access a gated repo.", "hub_unreachable", "by --env HF_TOKEN_PATH=FILE"),
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
        "enroot: File system corruption detected",
    ),
    (
        "slurmstepd: error: pyxis: --container-mounts: source path does not exist: /archive/saved",
        "container_failed",
        "--container-mounts: source path does not exist: /archive/saved",
    ),
    (
        "slurmstepd: error: pyxis: couldn't chdir to /shared/x: Permission denied",
        "container_failed",
        "couldn't chdir to /shared/x: Permission denied",
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
    ("HW Exception by GPU node-4 (Agent handle: 0x1e) reason :GPU Hang", "gpu_fault", "a GPU failed: HW Exc"),
    ("[9.1] NVRM: Xid (PCI:0000:41:00): 79, pid=1", "gpu_fault", "a GPU failed: NVRM: Xid (PCI:0000:41:00)"),
    (
        "Memory on the node (IP: 10.1.180.84, ID: ba) where the task (task ID: d2, name=head, pid=4503, "
        "memory used=18.30GB) was running was 1914.14GB / 2015.61GB (0.95), which exceeds the memory usage "
        "threshold of 0.95.",
        "host_out_of_memory",
        "the host 10.1.180.84",
    ),
    (
        "[ERROR] [launch.py:325] ['python'] exits with return code = -9",
        "rank_failed",
        "exit code -9 (SIGKILL",
    ),
    (
        "slurmstepd: error: *** STEP 7.0 ON n1 FAILED (non-zero exit code or other failure mode) ***",
        "cancelled",
        "Slurm ended the job: non-zero exit code or other failure mode",
    ),
    (
        "slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-own.sh exited with return code 1",
        "not_started",
        "enroot: /etc/enroot/hooks.d/98-own.sh exited with return code 1",
    ),
]


def problems(text):
    return {problem.kind: problem for problem in read_chunks([text.encode()]).problems}


@pytest.mark.parametrize(
    ("line", "kind", "words"), LINES, ids=[f"{kind}-{words[:20]}" for _, kind, words in LINES]
)
def test_the_cause_of_a_run_that_died(line, kind, words):
    found = problems("".join(map(line_forms.nemo2, range(30))) + line + "\n")
    assert set(found) == {kind, "short"}
    assert words in found[kind].message
    assert found[kind].fatal


STUCK = (
    "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be "
    "terminated after dumping debug info. workMetaList_.size()=103\n"
    "[rank1]:[E ProcessGroupNCCL.cpp:1153] [PG 0 Rank 1] ProcessGroupNCCL preparing to dump debug info.\n"
    "[rank1]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 1] [PG 0 Rank 1] ProcessGroupNCCL's watchdog got stuck "
    "for 600 seconds without making progress in monitoring enqueued collectives.\n"
)
PYXIS = (
    "slurmstepd: error: pyxis: child 3851 failed with error code: {code}\n"
    "slurmstepd: error: pyxis: failed to import docker image\n"
    "slurmstepd: error: pyxis: printing {header}\n"
    "slurmstepd: error: pyxis:     [INFO] Authentication succeeded\n"
    "{copied}"
    "slurmstepd: error: pyxis: couldn't start container\n"
    "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
    "srun: error: cpu-1: task 0: Exited with exit code 1\n"
)


def pyxis(*copied, code=1, header="enroot log file:"):
    """Return what pyxis prints if enroot fails, with these lines of enroot."""
    lines = "".join(f"slurmstepd: error: pyxis:     {line}\n" for line in copied)
    return PYXIS.format(code=code, header=header, copied=lines)


MKDIR = "mkdir: cannot create directory ‘/run/user/1000’: Permission denied"
USER_NAMESPACE = "enroot-nsenter: failed to create user namespace: No space left on device"
REFUSED = "[ERROR] URL https://nvcr.io/proxy_auth?scope=repository:nvidia/nemo:pull returned error code: 401"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
CHAINED = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
REPOSITORY = "https://huggingface.co/meta-llama/Llama-3.1-8B"
FIRST_CAUSE = [
    (
        STUCK,
        "nccl_timeout",
        "NCCL's watchdog thread got stuck for 600 s: a call of NCCL or CUDA hangs (rank 1)",
    ),
    (
        STUCK.splitlines()[0],
        "nccl_timeout",
        "NCCL's heartbeat monitor timed out: a call of NCCL or CUDA hangs (rank 1)",
    ),
    (
        "[rank7]:[F1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 7] ProcessGroupNCCL's "
        "watchdog got stuck for 480 seconds without making progress",
        "nccl_timeout",
        "stuck for 480 s: a call of NCCL or CUDA hangs (rank 7)",
    ),
    # Refusals of srun and slurmstepd.
    (
        "srun: error: Task launch for 73706.26 failed on node node32: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\n",
        "not_started",
        "on node32: Task launch for 73706.26 failed: Communication connection failure",
    ),
    (
        "srun: error: Task launch for StepId=9.0 failed on node h[1-2]: Invalid job credential\n",
        "not_started",
        "on h[1-2]: Task launch for StepId=9.0 failed: Invalid job credential",
    ),
    (
        "srun: error: Unable to create step for job 9: More processors requested than permitted\n",
        "not_started",
        "Unable to create step for job 9: More processors requested than permitted",
    ),
    (
        "srun: error: Unable to allocate resources: Invalid account or account/partition "
        "combination specified\n",
        "not_started",
        "Unable to allocate resources: Invalid account",
    ),
    (
        "slurmstepd: error: execve(): python3: No such file or directory\n"
        "srun: error: n1: task 0: Exited with exit code 2\n",
        "not_started",
        "execve(): python3: No such file or directory",
    ),
    (
        "slurmstepd: error: execve(): bad interpreter(/opt/py): No such file or directory\n",
        "not_started",
        "execve(): bad interpreter(/opt/py): No such file or directory",
    ),
    (
        "srun: error: task 3 launch failed: Slurmd could not connect IO\n",
        "not_started",
        "task 3 launch failed: Slurmd could not connect IO",
    ),
    (  # nvidia/pyxis, issue 107: the other nodes lost the step, as the first did not answer
        "srun: error: slurm_receive_msgs: [[n1]:6818] failed: Socket timed out on send/recv operation\n"
        "srun: error: Task launch for StepId=96.0 failed on node n2: No such process\n"
        "srun: error: Task launch for StepId=96.0 failed on node n3: No such process\n"
        "srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out\n"
        "srun: error: Application launch failed: Socket timed out on send/recv operation\n"
        "srun: Job step aborted\n",
        "not_started",
        "on n1: Task launch for StepId=96.0 failed: Socket timed out",
    ),
    (
        "srun: error: Task launch for StepId=96.0 failed on node n2: No such process\n",
        "not_started",
        "on n2: Task launch for StepId=96.0 failed: No such process",
    ),
    (  # issue 139
        "A requested component was not found, or was unable to be opened.  This\n"
        "means that this component is either not installed or is unable to be\n"
        "used on your system.\n\nHost:      gpu1\nFramework: psec\nComponent: munge\n"
        "It looks like pmix_init failed for some reason; your parallel process is\nlikely to abort.\n",
        "not_started",
        "MPI could not start: pmix_init failed",
    ),
    # enroot's output, as pyxis copies it.
    (  # issue 166
        "slurmstepd: error: pyxis: container start failed with error code: 1\n"
        "slurmstepd: error: pyxis: printing enroot log file:\n"
        "slurmstepd: error: pyxis:   nvidia-container-cli: container error: lookup failed: /etc: denied\n"
        "slurmstepd: error: pyxis:   [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n"
        "slurmstepd: error: pyxis: couldn't start container\n",
        "not_started",
        "enroot: nvidia-container-cli: container error: lookup failed: /etc: denied",
    ),
    (pyxis(MKDIR, header="contents of log file ..."), "not_started", f"enroot: {MKDIR}"),
    (
        pyxis("curl: (6) Could not resolve host: nvcr.io"),
        "not_started",
        "(6) Could not resolve host: nvcr.io",
    ),
    (
        pyxis("/etc/enroot/hooks.d/98.sh: line 9: jq: command not found"),
        "not_started",
        "jq: command not found",
    ),
    (pyxis(MKDIR, REFUSED), "not_started", f"enroot: {REFUSED.removeprefix('[ERROR] ')}"),
    (pyxis(code=137), "not_started", "was killed: exit code 137 (SIGKILL, most often for lack of memory)"),
    (pyxis(code=139), "not_started", "was killed: exit code 139 (SIGSEGV)"),
    (pyxis(), "container_failed", "pyxis could not start the container: failed to import docker image"),
    (
        "slurmstepd: error: pyxis: container start failed with error code: 1\n",
        "container_failed",
        "container start failed with error code: 1",
    ),
    # Cases in which no space is left, but not on a shared disk.
    (pyxis(USER_NAMESPACE), "not_started", "the node allows no more user namespaces"),
    (
        pyxis(
            "Write failed because No space left on device", "FATAL ERROR:Failed to write to output filesystem"
        ),
        "not_started",
        "the node's disk for containers is full",
    ),
    (
        "OSError: [Errno 28] No space left on device\nERROR: Unexpected bus error encountered in worker. "
        "This might be caused by insufficient shared memory (shm).\n",
        "shm_too_small",
        "shm is too small",
    ),
    (
        "RuntimeError: unable to write to file </torch_1534_1>: No space left on device (28)\n",
        "shm_too_small",
        "shm is too small",
    ),
    (
        "n1:7:8 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-aRXwXC to "
        "9637892 bytes, error: No space left on device (28)\n",
        "shm_too_small",
        "shm is too small",
    ),
    (
        "n1:7:8 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x "
        "(size 9637888)\n",
        "shm_too_small",
        "shm is too small (GPU 0 on n1)",
    ),
    ("OSError: [Errno 28] No space left on device: '/lustre/x/step=9.ckpt'\n", "disk_full", "writing failed"),
    # Exit codes that are signals.
    *(
        (
            f" failed (exitcode: {code}) local_rank: 0 (pid: 7) of binary: python\n",
            "rank_failed",
            f"{code} ({name}",
        )
        for code, name in ((-7, "SIGBUS"), (-9, "SIGKILL"))
    ),
    *(
        (
            f"srun: error: n1: task 3: Exited with exit code {code}\n",
            "rank_failed",
            f"exit code {code} ({name}",
        )
        for code, name in ((134, "SIGABRT"), (143, "SIGTERM"))
    ),
    ("  exitcode  : -11 (pid: 3304209)\n", "rank_failed", "-11 (SIGSEGV)"),
    ("ERROR: process exited with exit code 137\n", "rank_failed", "137 (SIGKILL"),
    (
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 11 "
        "(Segmentation fault).\n",
        "rank_failed",
        "rank 3 on n1 was ended by signal 11 (SIGSEGV)",
    ),
    (
        "srun: error: eio_message_socket_accept: slurm_receive_msg\n",
        "rank_failed",
        "srun: eio_message_socket",
    ),
    # Exceptions that explain others.
    (
        f"{TRACEBACK}KeyError: 'x'\n{CHAINED}{TRACEBACK}mcore.CheckpointingException: no shape\n",
        "traceback",
        "Python traceback: mcore.CheckpointingException: no shape",
    ),
    (
        f"{TRACEBACK}KeyError: 'x'\n{HANDLING}{TRACEBACK}IndexError: y\n{CHAINED}{TRACEBACK}ValueError: z\n",
        "traceback",
        "Python traceback: ValueError: z",
    ),
    (
        f"{TRACEBACK}torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([0])\nTraceback (most recent call last): (RANK 0)\n"
        '  File "x.py", line 1, in f\nFileNotFoundError: /saved/.metadata\n',
        "traceback",
        "Python traceback: FileNotFoundError: /saved/.metadata",
    ),
    (
        f"{TRACEBACK}ConnectionResetError: [Errno 104]\n{TRACEBACK}ValueError: heads\n",
        "traceback",
        "Python traceback: ValueError: heads",
    ),
    (
        f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, "
        "internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Connection closed by remote peer node7<50260>\n",
        "nccl_error",
        "NCCL: Net : Connection closed by remote peer node7<50260>",
    ),
    (
        "[rank3]: Last error:\n[rank1]: step\n\n[rank3]: Cuda failure 'an illegal memory access'\n",
        "nccl_error",
        "NCCL: Cuda failure 'an illegal memory access'",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: ../x.cpp:1275, unhandled system error, NCCL "
        "2.14.3\n",
        "nccl_error",
        "NCCL: unhandled system error, NCCL 2.14.3",
    ),
    (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  Socket Timeout\n",
        "crash",
        "a process crashed with a C++ exception: Socket Timeout",
    ),
    (
        f"{TRACEBACK}requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: "
        f"{REPOSITORY}/resolve/main/config.json\n{CHAINED}{TRACEBACK}"
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-a)\n\n"
        f"Cannot access gated repo for url {REPOSITORY}/resolve/main/config.json.\n"
        "Access to model meta-llama/Llama-3.1-8B is restricted. You must have access to it.\n"
        f"{CHAINED}{TRACEBACK}OSError: You are trying to access a gated repo.\n",
        "hub_unreachable",
        "the hub refuses access to model meta-llama/Llama-3.1-8B",
    ),
    (
        f"{TRACEBACK}huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: R)\n\n"
        "Repository Not Found for url: https://huggingface.co/api/models/nvidia/none.\n",
        "hub_unreachable",
        "https://huggingface.co/api/models/nvidia/none, or does not have it",
    ),
    (
        f"OSError: You are trying to access a gated repo.\nMake sure to have access to it at {REPOSITORY}.\n",
        "hub_unreachable",
        f"refuses access to {REPOSITORY}, or",
    ),
    (
        "OSError: nvidia/none is not a local folder and is not a valid model identifier listed on 'https://x'\n",
        "hub_unreachable",
        "nvidia/none, or does not have it",
    ),
    (
        "HTTPError: 401 Client Error: Unauthorized for url: https://api.wandb.ai/graphql\n",
        "hub_unreachable",
        "https://api.wandb.ai/graphql",
    ),
    (
        "AssertionError: Rank 3: found NaN in local grad norm in backwards pass. Device: 3, node: gpu-a7.x\n",
        "nan_grad_norm",
        "became NaN in the backward pass (rank 3 on gpu-a7.x)",
    ),
    (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily "
        "unavailable\nSegmentation fault (core dumped)\n",
        "too_many_processes",
        "raise the limit of processes (ulimit -u)",
    ),
    (
        "libgomp: Thread creation failed: Resource temporarily unavailable\n",
        "too_many_processes",
        "a thread could not be started",
    ),
    (
        "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to "
        "(node7, 29500).\nRendezvousConnectionError: The connection to the C10d store has failed. See inner "
        "exception for details.\n",
        "store_unreachable",
        "torch's store at (node7, 29500) within 60s",
    ),
    (
        f"{TRACEBACK}ValueError: of rank 0\n[E socket.cpp:860] [c10d] The client socket has timed out after "
        "60s while trying to connect to node7:29500\n",
        "traceback",
        "ValueError: of rank 0",
    ),
    (
        f"Dataset does not exist: /data/web\n{TRACEBACK}AttributeError: 'NoneType' has no 'sizes'\n",
        "no_data",
        "the dataset /data/web does not exist",
    ),
]


@pytest.mark.parametrize(("log", "kind", "words"), FIRST_CAUSE, ids=[words for _, _, words in FIRST_CAUSE])
def test_the_first_cause_is_the_one_that_explains_the_failure(log, kind, words):
    first = read_chunks([log.encode()]).problems[0]
    assert (first.kind, first.fatal) == (kind, True)
    assert words in first.message


@pytest.mark.parametrize("log", [text for text, kind, _ in FIRST_CAUSE if kind != "disk_full"])
def test_a_disk_is_full_only_if_it_is_a_disk(log):
    assert "disk_full" not in problems(log)


def test_a_cause_does_not_depend_on_the_pieces_of_its_lines():
    """A growing log is read as far as it is written, perhaps amid a message of several lines."""
    said = "Last error:\nnode3: no route\n"
    for log in (*(log for log, _, _ in FIRST_CAUSE), f"Last error:\n{said}node4: no route\n"):
        text = log.encode()
        whole = read_chunks([text])
        assert read_chunks([text[at : at + 7] for at in range(0, len(text), 7)]) == whole
        assert read_chunks(text.splitlines(keepends=True)) == whole


def test_what_nccl_says_is_found_amid_steps_and_amid_a_long_log_without_steps():
    """Among steps, lines are recognised by their shape; without steps, the words are searched for."""
    steps = [line_forms.nemo2(step, last=299).encode() for step in range(200)]
    noise = b"".join(map(line_forms.nccl_trace, range(500)))
    head, said = b"[rank3]: Last error:\n", b"[rank3]: socketProgress: Connection closed\n"
    for log in ([*steps[:150], head, steps[149], said, steps[150]], [noise + head + said + noise]):
        assert read_chunks(log).problems[0].message == "NCCL: socketProgress: Connection closed (rank 3)"


def test_a_chain_that_is_cut_is_told_as_far_as_it_goes():
    log = read_chunks([f"{TRACEBACK}KeyError: 'x'\n{CHAINED}{TRACEBACK}".encode()])
    assert log.problems[0].message.startswith("Python traceback: KeyError: 'x'")


@pytest.mark.parametrize(("steps", "last"), [(30, 49), (200, 299)], ids=["short log", "long log"])
def test_the_exception_of_an_attempt_is_not_the_next_ones(steps, last):
    first = "".join(line_forms.nemo2(step, last=last) for step in range(steps))
    again = "".join(line_forms.nemo2(step, last=last, time="2.7") for step in range(last + 1))
    found = problems(f"{first}{TRACEBACK}ValueError: once\n{again}")
    assert found["traceback"].message == "in an earlier attempt: Python traceback: ValueError: once"


def test_chains_of_several_ranks_are_told_apart():
    chain = f"{TRACEBACK}KeyError: 'x'\n{CHAINED.strip()}\n{TRACEBACK}ValueError: z".splitlines()
    log = "".join(f"[rank{rank}]: {line}\n" for line in chain for rank in range(4))
    assert problems(log)["traceback"].message == "Python traceback: ValueError: z (ranks 0, 1, 2, 3)"


@pytest.mark.parametrize("gpu_type", [None, "h100", "gb200"])
def test_advice_for_gb200_is_given_on_gb200_alone(tmp_path, gpu_type):
    log = tmp_path / "log-x.out"
    log.write_text(f"{NCCL}\n")
    message = read_log(log, gpu_type=gpu_type).problems[0].message
    assert ("--no-tp-comm-overlap" in message) == (gpu_type == "gb200")


def test_the_cause_comes_before_what_follows_from_it():
    log = read_chunks(["".join(map(line_forms.nemo2, range(30))).encode() + OOM.encode()])
    assert [problem.kind for problem in log.problems] == ["cuda_out_of_memory", "short"]


def test_why_comes_before_how_a_rank_ended():
    """The node's words appear after srun's own sentence."""
    ended = b"srun: error: n1: task 0: Exited with exit code 1\n"
    why = b"slurmstepd: error: pyxis:     [ERROR] Invalid image format: /shared/nemo.sqsh\n"
    found = [problem.kind for problem in read_chunks([ended + why]).problems]
    assert found == ["not_started", "rank_failed", "no_steps"]


def test_a_gradient_that_became_nan_spoils_the_numbers_wherever_it_is_printed():
    line = "RuntimeError: found NaN in local grad norm for bucket #0\n"
    assert problems("".join(map(line_forms.nemo2, range(50))) + line)["nan_grad_norm"].fatal


def test_what_pyxis_says_of_a_job_that_was_cancelled_is_no_cause():
    """The job was cancelled while its image was unpacked: pyxis then marks every line as an error."""
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
        "dcgm: 0 Xid errors, 0 exceptions by GPU, return code = 0",
        "srun: error: ",
        "pyxis: importing docker image: nvidia/nemo:25.04",
        "see https://huggingface.co/docs for help",
    ],
)
def test_words_by_chance_are_no_failure(harmless):
    assert problems("".join(map(line_forms.nemo2, range(50))) + harmless + "\n") == {}


def test_a_traceback_that_a_known_cause_explains_is_not_named_again():
    assert set(problems(f"Traceback (most recent call last):\n  File x\n{OOM}\n")) == {
        "cuda_out_of_memory",
        "no_steps",
    }


def test_a_traceback_without_a_known_exception_is_still_named():
    assert problems("Traceback (most recent call last):\n  File x\nKeyboardInterrupt\n")["traceback"].fatal


def excerpt(text, *, pieces=1 << 20):
    data = text.encode()
    chunks = [data[at : at + pieces] for at in range(0, len(data), pieces)]
    return read_chunks(chunks).excerpt.splitlines()


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize("pieces", [100, 1 << 20])
def test_an_excerpt_has_the_lines_around_the_first_sign_of_the_cause(pieces):
    before, behind = (
        [f"before {number}" for number in range(500)],
        [f"behind {number}" for number in range(500)],
    )
    found = excerpt("\n".join([*before, OUT_OF_MEMORY, *behind, OUT_OF_MEMORY]), pieces=pieces)
    assert found[:15] == [*before[-14:], OUT_OF_MEMORY]
    assert found[15:] == behind[: len(found) - 15]
    assert len(found) <= 20


def test_an_excerpt_of_a_log_without_a_cause_has_its_last_lines():
    found = excerpt("\n".join(f"line {number}" for number in range(3000)))
    assert found == [f"line {number}" for number in range(2985, 3000)]


def test_a_complete_log_has_no_excerpt():
    assert read_chunks([line_forms.nemo2_log()]).excerpt == ""


def test_an_excerpt_is_of_the_last_attempt():
    first, again = (
        "".join(line_forms.nemo2(step, time=time) for step in range(30)) for time in ("2.6", "2.7")
    )
    one, two = (f"{OUT_OF_MEMORY}\nin attempt {number}\n" for number in (1, 2))
    log = read_chunks([f"{first}{one}{again}{two}".encode()])
    assert "in attempt 2" in log.excerpt
    assert "in attempt 1" not in log.excerpt


def test_an_excerpt_is_short_and_printable():
    found = excerpt("\n".join(["\x1b[31mred\x1b[0m\a \x00 ü" + "x" * 1000] * 50 + [OUT_OF_MEMORY]))
    assert found[-1] == OUT_OF_MEMORY
    assert found[-2].endswith("x …")
    assert "".join(found).isprintable()
    assert len("\n".join(found).encode()) <= 4096


@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN=hf_abcdefghijklmnop",
        "{'WANDB_API_KEY': 'abcdef0123456789'}",
        "Authorization: Bearer abcdef0123456789",
        "login with hf_abcdefghijklmnop failed",
        "proxy http://user:abcdef@proxy:3128",
        "--password abcdef",
    ],
)
def test_an_excerpt_shows_no_secrets(line):
    assert excerpt(f"{line}\n{OUT_OF_MEMORY}") == ["(line left out: it may show a secret)", OUT_OF_MEMORY]
