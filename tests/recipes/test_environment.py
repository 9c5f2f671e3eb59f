"""Variables for a job: which of upstream's documented ones are allowed, and which look secret."""

from steptime.errors import UserError
from steptime.recipes.environment import (
    check_arguments,
    check_environment,
    find_secret_in_line,
    leads_to_code,
)

OWN = "is set by the job script or the cluster itself: leave it out"
SECRET = "looks like a secret"
CODE = "leads to code, so that a cluster's file has to permit it"
FREE = "is anybody's to set"

WHAT_BECOMES = {
    # Names that are listed, match by prefix or pattern, or only look like these.
    **dict.fromkeys(("PATH", "PYTHONPATH", "MASTER_ADDR", "RANK", "ENV", "PS4", "UID"), OWN),
    **dict.fromkeys(("BASH_ENV", "BASHOPTS", "SLURM_CONF", "SBATCH_PARTITION", "SRUN_CONTAINER"), OWN),
    **dict.fromkeys(("_SLURM_SPANK_OPTION_pyxis_container_mounts", "SPANK_x", "STEPTIME_HOME"), OWN),
    "TORCHELASTIC_RUN_ID": OWN,
    **dict.fromkeys(("PYTHONHASHSEED", "PYTHONUNBUFFERED", "LANG", "TORCH_LOGS"), FREE),
    **dict.fromkeys(("PYTHONSTARTUP", "PYTHON_PRESITE", "LD_PRELOAD", "LD_AUDIT", "OPENSSL_CONF"), CODE),
    **dict.fromkeys(("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "LDFLAGS"), FREE),
    **dict.fromkeys(("CC", "CUDA_HOME", "NVCC_APPEND_FLAGS", "NVTE_CUDA_INCLUDE_DIR"), CODE),
    **dict.fromkeys(("TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TORCHINDUCTOR_CACHE_DIR"), CODE),
    **dict.fromkeys(("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_FLASH_ATTN", "TRITON_PRINT_AUTOTUNING"), FREE),
    **dict.fromkeys(("NCCL_NET_PLUGIN", "NVSHMEM_BOOTSTRAP_PLUGIN", "UCX_MODULE_DIR", "OPAL_PREFIX"), CODE),
    **dict.fromkeys(("OMPI_MCA_mca_base_component_path", "PMIX_MCA_mca_base_component_path"), CODE),
    **dict.fromkeys(("NCCL_DEBUG", "NCCL_IB_PKEY", "UCX_TLS", "OMPI_MCA_btl", "PMIX_MCA_gds"), FREE),
    **dict.fromkeys(("OMP_TOOL_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"), CODE),
    **dict.fromkeys(("ENROOT_CONFIG_PATH", "PYXIS_CONTAINER_MOUNTS", "APPTAINERENV_LD_PRELOAD"), CODE),
    **dict.fromkeys(("SINGULARITY_BIND", "HOME", "XDG_CONFIG_HOME"), CODE),
    # Names that look secret, as variables are recorded and shown, and names that do not.
    **dict.fromkeys(("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET", "MY_SECRETS", "AWS_ACCESS_KEY"), SECRET),
    **dict.fromkeys(("DB_PASSWORD", "PASSWORDS", "PGPASSWD", "SSH_PASSPHRASE", "MY_CREDENTIAL"), SECRET),
    **dict.fromkeys(("X_CREDENTIALS", "PRIVATE_KEY", "SSHKEY", "KEY", "SIGNING_KEY", "hf_token"), SECRET),
    **dict.fromkeys(("GITHUB_PAT", "MY_PASS", "AUTH", "REGISTRY_AUTH", "PASS"), SECRET),
    **dict.fromkeys(("NCCL_PAT_ENABLE", "PATH_OF_DATA", "BYPASS", "XAUTHORITY", "SSH_AUTH_SOCK"), FREE),
    **dict.fromkeys(("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY", "HF_HOME"), FREE),
}


def refusal(variables):
    try:
        check_environment(variables)
    except UserError as error:
        return str(error)
    return ""


def becomes_of(name):
    """Return what happens to a variable that is second in an environment, as all have to be checked."""
    if said := refusal({"FIRST": "1", name: "/x"}):
        return next((outcome for outcome in (OWN, SECRET) if f"'{name}' {outcome}" in said), said)
    return CODE if leads_to_code(name) else FREE


def test_what_becomes_of_a_variable():
    wrong = [
        f"{name}: expected that it {expected}, and it {became}"
        for name, expected in WHAT_BECOMES.items()
        if (became := becomes_of(name)) != expected
    ]
    assert not wrong, "\n".join(wrong)


VALUES = {
    # a value, and why it is refused; empty if it is accepted
    "http://proxy:3128": "",
    "user@host:22": "",
    "": "",
    "a\tb $HOME 'c' \"d\" ä": "",
    "http://user:hunter2@proxy:3128": "has an address with a password, and a job's environment is recorded",
    "http://:hunter2@proxy": "has an address with a password",
    "ghp_hunter2hunter2hunter2": "has what looks like an access token or a private key",
    "https://ghp_hunter2hunter2hunter2@github.com/a/b": "has what looks like an access token",
    "glpat-hunter2hunter2-hunter2": "has what looks like an access token",
    "hf_hunter2AbCdEfGhIjKlMnOpQrSt": "has what looks like an access token",
    "-----BEGIN OPENSSH PRIVATE KEY----- hunter2": "a private key, and a job's environment is recorded and "
    "shown: put it into a file on the cluster that only you can read",
    "/data/hf_checkpoints_of_llama/sk-x": "",
    "glm-45-air-pretrain-config-of-ours": "",
    "x" * ((128 << 10) - len("http_proxy=\0A=1\0")): "",
    "x" * (128 << 10): "the variables take 131,088 bytes, and a job may have 131,072: shorten",
    "1\nLD_PRELOAD=/x": "has a line break, after which containers would read another variable: write it "
    "in one",
    "1\n": "has a line break",
    "a\0b": "has a NUL character, which variables cannot have",
}
NAMES = ("1A", "A-B", "A B", "A=B", "", "Ä", "BASH_FUNC_x%%", "A\n")


def test_what_a_value_and_a_name_cannot_be():
    wrong = [
        f"{value!r}: {said!r}"
        for value, complaint in VALUES.items()
        if complaint not in (said := refusal({"A": "1", "http_proxy": value}))
        or bool(said) is not bool(complaint)
        or (said and "'http_proxy'" not in said)
        or "hunter2" in said
    ]
    is_no_name = "is not a variable name: use letters, digits and _"
    wrong += [name for name in NAMES if is_no_name not in refusal({"A": "1", name: "1"})]
    assert not wrong, "\n".join(wrong)


LINES = {
    # a line of a cluster's `setup`, and whether it contains a secret
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
    "docker login -u me -p hunter2 nvcr.io": True,
    "docker login -u me -p $PW nvcr.io": False,
    "docker login --username me --password-stdin < ~/.registry": False,
    "wandb login 0123456789abcdef": True,
    'wandb login "$KEY_OF_THE_SITE"': False,
    "hf auth login --token hunter2": True,
    "curl -u me:hunter2 https://site/x": True,
    "curl -H 'Authorization: Bearer hunter2' https://site": True,
    "git clone https://ghp_hunter2hunter2hunter2@github.com/a/b": True,
    "export MY_PASS=hunter2": True,
    'export HF_TOKEN="$TOKEN_OF_THE_SITE"': False,
    "export HF_TOKEN=$(cat ~/.hf_token)": False,
    "ulimit -n 65536": False,
    "mkdir -p /scratch/login": False,
}


def test_which_lines_show_a_secret():
    wrong = [line for line, secret in LINES.items() if bool(find_secret_in_line(line)) is not secret]
    assert not wrong, wrong


ARGUMENTS = {
    # arguments of a training program, and whether they contain a secret
    ("hf_token", "hunter2"): True,
    ("wandb_key", "hunter2"): True,
    ("eos_token", "</s>"): False,
    ("text_key", "content"): False,
    ("tokens", "1000"): False,
    ("data_path", "https://me:hunter2@site/data"): True,
    ("resume", "ghp_hunter2hunter2hunter2"): True,
}


def test_which_arguments_are_secrets():
    wrong = []
    for (name, value), secret in ARGUMENTS.items():
        try:
            check_arguments({name: value})
            refused = ""
        except UserError as error:
            refused = str(error)
        if bool(refused) is not secret or "hunter2" in refused:
            wrong.append((name, value, refused))
    assert not wrong, wrong
