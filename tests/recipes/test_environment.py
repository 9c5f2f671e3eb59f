"""Variables that a job may be given: what becomes of those that upstream documents, and which look secret."""

import re
import subprocess
import sys

from steptime.errors import UserError
from steptime.recipes.environment import (
    check_environment,
    leads_to_code,
    names_secret,
)

OWN = "is set by the job script or the cluster itself: leave it out"
SECRET = "looks like a secret"
CODE = "leads to code, so that a cluster's file has to permit it"
FREE = "is anybody's to set"

WHAT_BECOMES = {
    # What `python --help-env` prints, and later releases.
    "PYTHONPATH": OWN,  # the trainer that was staged is found by it
    "PYTHONSAFEPATH": OWN,
    "PYTHONNOUSERSITE": OWN,
    "PYTHONBREAKPOINT": CODE,
    "PYTHONHOME": CODE,
    "PYTHONINSPECT": CODE,
    "PYTHONPLATLIBDIR": CODE,
    "PYTHONPYCACHEPREFIX": CODE,  # compiled modules are loaded from there
    "PYTHONSTARTUP": CODE,
    "PYTHONUSERBASE": CODE,
    "PYTHONWARNINGS": CODE,  # a category is imported by its name
    "PYTHON_PRESITE": CODE,
    "PYTHONEXECUTABLE": CODE,  # of macOS, and of virtual environments
    **dict.fromkeys(
        (
            *("PYTHONASYNCIODEBUG", "PYTHONCASEOK", "PYTHONCOERCECLOCALE", "PYTHONDEBUG", "PYTHONDEVMODE"),
            *("PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONINTMAXSTRDIGITS"),
            *("PYTHONIOENCODING", "PYTHONLEGACYWINDOWSFSENCODING", "PYTHONLEGACYWINDOWSSTDIO"),
            *("PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONNODEBUGRANGES", "PYTHONOPTIMIZE"),
            *("PYTHONPERFSUPPORT", "PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONUNBUFFERED"),
            *("PYTHONUTF8", "PYTHONVERBOSE", "PYTHONWARNDEFAULTENCODING", "PYTHON_BASIC_REPL"),
            *("PYTHON_COLORS", "PYTHON_CPU_COUNT", "PYTHON_FROZEN_MODULES", "PYTHON_GIL", "PYTHON_HISTORY"),
            *("PYTHON_PERF_JIT_SUPPORT",),
        ),
        FREE,
    ),
    # ld.so(8), iconv(3), openssl-env(7)
    **dict.fromkeys(("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_DEBUG_OUTPUT"), CODE),
    **dict.fromkeys(("GCONV_PATH", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"), CODE),
    **dict.fromkeys(("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "LANG", "LC_ALL", "TZ", "LDFLAGS"), FREE),
    # bash(1): files that it reads, commands that it runs, names that it does not let anybody set
    **dict.fromkeys(("PATH", "BASH_ENV", "ENV", "PS4", "IFS", "POSIXLY_CORRECT", "SHELLOPTS"), OWN),
    **dict.fromkeys(("BASHOPTS", "UID", "EUID", "PPID"), OWN),
    # sbatch(1) and srun(1): variables are options of theirs
    **dict.fromkeys(("SLURM_CONF", "SLURM_JOB_ID", "SBATCH_PARTITION", "SRUN_CONTAINER"), OWN),
    **dict.fromkeys(("_SLURM_SPANK_OPTION_pyxis_container_mounts", "SPANK_x", "STEPTIME_HOME"), OWN),
    # torch.distributed: who a rank is
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"), OWN),
    **dict.fromkeys(("LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"), OWN),
    **dict.fromkeys(("TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS"), FREE),
    # torch, Triton, CUDA, Transformer Engine: compilers, and where compiled code is loaded from
    **dict.fromkeys(("CC", "CXX", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH"), CODE),
    **dict.fromkeys(("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVTE_CUDA_INCLUDE_DIR"), CODE),
    **dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"), CODE),
    **dict.fromkeys(("TRITON_CACHE_DIR", "TRITON_OVERRIDE_DIR", "TRITON_DUMP_DIR", "TRITON_HOME"), CODE),
    **dict.fromkeys(("TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "TRITON_CUOBJDUMP_PATH"), CODE),
    **dict.fromkeys(("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"), FREE),
    **dict.fromkeys(("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "TRITON_PRINT_AUTOTUNING"), FREE),
    **dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_MAX_AUTOTUNE", "OMP_NUM_THREADS"), FREE),
    # NCCL, NVSHMEM, UCC, UCX, libfabric, rdma-core, Open MPI, PMIx
    **dict.fromkeys(("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"), CODE),
    **dict.fromkeys(("NCCL_CONF_FILE", "NVSHMEM_BOOTSTRAP_PLUGIN", "UCC_COMPONENT_PATH"), CODE),
    **dict.fromkeys(("UCX_MODULE_DIR", "FI_PROVIDER_PATH", "IBV_DRIVERS", "RDMAV_DRIVERS"), CODE),
    **dict.fromkeys(("OMPI_MCA_mca_base_component_path", "OPAL_PREFIX", "OPAL_LIBDIR"), CODE),
    **dict.fromkeys(("PMIX_MCA_mca_base_component_path", "PMIX_INSTALL_PREFIX"), CODE),
    **dict.fromkeys(("NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_P2P_NET_CHUNKSIZE"), FREE),
    **dict.fromkeys(("NCCL_IB_PKEY", "NVSHMEM_SYMMETRIC_SIZE", "UCX_TLS", "FI_PROVIDER"), FREE),
    **dict.fromkeys(("OMPI_MCA_btl", "PMIX_MCA_gds", "IBV_FORK_SAFE", "RDMAV_FORK_SAFE"), FREE),
    # tools that are loaded into a process to watch it
    **dict.fromkeys(("OMP_TOOL_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"), CODE),
    # enroot, pyxis, Apptainer, and what they look for their files by
    **dict.fromkeys(("ENROOT_CONFIG_PATH", "ENROOT_RUNTIME_PATH", "PYXIS_CONTAINER_MOUNTS"), CODE),
    **dict.fromkeys(("APPTAINER_BIND", "APPTAINERENV_LD_PRELOAD", "SINGULARITY_BIND", "HOME"), CODE),
    **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME"), CODE),
    # what is recorded and shown
    **dict.fromkeys(("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET", "MY_SECRETS", "AWS_ACCESS_KEY"), SECRET),
    **dict.fromkeys(("DB_PASSWORD", "PASSWORDS", "PGPASSWD", "SSH_PASSPHRASE", "MY_CREDENTIAL"), SECRET),
    **dict.fromkeys(("X_CREDENTIALS", "PRIVATE_KEY", "SSHKEY", "KEY", "SIGNING_KEY", "hf_token"), SECRET),
    **dict.fromkeys(("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY", "HF_HOME"), FREE),
}


def refusal(variables: dict[str, str]) -> str:
    try:
        check_environment(variables)
    except UserError as error:
        return str(error)
    return ""


def becomes_of(name: str) -> str:
    """The first of a mapping is not the only one that is looked at."""
    if said := refusal({"FIRST": "1", name: "/x"}):
        return next((outcome for outcome in (OWN, SECRET) if f"'{name}' {outcome}" in said), said)
    return CODE if leads_to_code(name) else FREE


def test_what_becomes_of_a_variable() -> None:
    wrong = [
        f"{name}: expected that it {expected}, and it {became}"
        for name, expected in WHAT_BECOMES.items()
        if (became := becomes_of(name)) != expected
    ]
    assert not wrong, "\n".join(wrong)


def test_every_variable_that_python_reads_was_thought_of() -> None:
    printed = subprocess.run([sys.executable, "--help-env"], capture_output=True, text=True, check=True)
    names = set(re.findall(r"^(PYTHON[A-Z0-9_]+)", printed.stdout, re.MULTILINE))
    assert "PYTHONSTARTUP" in names, printed.stdout
    assert names <= WHAT_BECOMES.keys(), names - WHAT_BECOMES.keys()


VALUES = {
    # a value, and why it cannot be; empty where it can
    "http://proxy:3128": "",
    "user@host:22": "",
    "": "",
    "a\tb $HOME 'c' \"d\" ä": "",
    "http://user:hunter2@proxy:3128": "has an address with a password, and a job's environment is recorded",
    "http://:hunter2@proxy": "has an address with a password",
    "x" * (128 << 10): "the variables take 131,082 bytes, and a job may have 131,072: shorten",
    "1\nLD_PRELOAD=/x": "has a line break, after which containers would read another variable: write it "
    "in one",
    "1\n": "has a line break",
    "a\0b": "has a NUL character, which variables cannot have",
}
NAMES = ("1A", "A-B", "A B", "A=B", "", "Ä", "BASH_FUNC_x%%", "A\n")


def test_what_a_value_and_a_name_cannot_be() -> None:
    wrong = [
        f"{value!r}: {said!r}"
        for value, complaint in VALUES.items()
        if complaint not in (said := refusal({"http_proxy": value}))
        or bool(said) is not bool(complaint)
        or (said and "'http_proxy'" not in said)
        or "hunter2" in said
    ]
    is_no_name = "is not a variable name: use letters, digits and _"
    wrong += [name for name in NAMES if is_no_name not in refusal({"A": "1", name: "1"})]
    assert not wrong, "\n".join(wrong)


LINES = {
    # a line of a cluster's `setup`, and whether it shows something secret
    "export HF_TOKEN=abc": True,
    "DB_PASSWORD='x' ./start": True,
    "A=1 API_KEY=2": True,
    "API_KEY=2 A=1": True,
    "export https_proxy=http://user:hunter2@proxy": True,
    "export HF_TOKEN=$TOKEN_OF_THE_SITE": False,
    "export HF_TOKEN=": False,
    "unset HF_TOKEN": False,
    "module load cuda/12.8": False,
    "export A=1 B=2": False,
    "export https_proxy=http://proxy:3128": False,
    "source /etc/site/token.sh": False,
}


def test_which_lines_show_a_secret() -> None:
    wrong = [line for line, secret in LINES.items() if names_secret(line) is not secret]
    assert not wrong, wrong
