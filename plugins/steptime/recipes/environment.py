"""Rules for a job's environment variables: reserved names, secrets, and variables that can load code."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from steptime.errors import UserError, one_line

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OWN = (
    *("PATH", "PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONSAFEPATH"),
    # Which rank a process is, and where the ranks meet.
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    # The shell runs commands out of some of them, reads a script by others, or does not let them be set.
    *("ENV", "PS4", "IFS", "POSIXLY_CORRECT", "SHELLOPTS", "UID", "EUID", "PPID"),
)
_OWN_PREFIXES = ("STEPTIME_", "SLURM_", "_SLURM_", "SBATCH_", "SRUN_", "SPANK_", "TORCHELASTIC_", "BASH")
_LEAD_TO_CODE = (
    # The dynamic loader and the C library; OpenSSL's engines.
    *("LD_*", "GCONV_PATH", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"),
    # Python: modules, and folders that it takes them from.
    *("PYTHONBREAKPOINT", "PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONINSPECT", "PYTHONPLATLIBDIR"),
    *("PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONWARNINGS", "PYTHON_PRESITE"),
    # Compilers that a training calls, and folders that compiled code is loaded from.
    *("CC", "CXX", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "NVCC_*", "NVTE_CUDA_INCLUDE_*"),
    *("CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"),
    *("TRITON_*DIR", "TRITON_*PATH", "TRITON_HOME"),
    # Plugins of the libraries below the training, and what is loaded into a process to watch it.
    *("NCCL_*PLUGIN*", "NCCL_CONF_FILE", "NVSHMEM_*PLUGIN*", "UCC_COMPONENT_PATH", "UCX_MODULE_DIR"),
    *("FI_PROVIDER_PATH", "IBV_DRIVERS", "RDMAV_DRIVERS", "OMPI_MCA_*component_path", "OPAL_*"),
    *("PMIX_MCA_*component_path", "PMIX_INSTALL_PREFIX", "OMP_TOOL_LIBRARIES", "*_INJECTION*_PATH"),
    # How a container is started: its mounts, and hooks that run outside of it.
    *("ENROOT_*", "PYXIS_*", "APPTAINER*", "SINGULARITY*", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
)
"""Patterns of variables that make processes load arbitrary code, or change how containers start."""
SENSITIVE_WORDS = (
    r"(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE|SSH)_?KEY|(?:^|_)KEY)"
)
"""Regular expression for the words, in upper case, that the names of secret variables contain.

It must not match `TOKENIZERS_PARALLELISM`, `MAX_TOKENS` and `NCCL_IB_PKEY`.
"""

PASSWORD_IN_ADDRESS = re.compile(r"""(?P<before>://[^\s/@:'"]*:)(?P<password>[^\s/@'"]+)(?=@)""")
"""Finds the password in `http://user:password@host`, and what is before it."""

ACCESS_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[oprsu]_[A-Za-z0-9]{10,}|github_pat_\w{10,}"
    r"|gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[\w-]{16,}"
    r"|nvapi-[\w-]{10,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{10,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,})"
    r"|(?<=\bBearer\s)[^\s$'\"(][^\s'\"]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----)?"
)
"""Finds access tokens in the forms of known services, `Bearer` with a token, and private keys."""

_ASSIGNED = re.compile(r"(?<![\w-])([A-Za-z_]\w*)=[\"']?(?=[^\s;&|$\"'])", re.ASCII)
"""Finds the names of variables that a line of bash sets, except to another variable's value (`A=$B`)."""
_ARGUMENT_NAME = (
    r"(?:password|passwd|passphrase|secret|(?:api|access|private|wandb)[_-]?key|(?:^|[^\w-]|--)token"
    r"|(?:hf|api|access|auth|github|wandb)[_-]token)"
)
"""Regular expression for the ends of secret arguments' names; `eos_token` and `text_key` are none."""
_ARGUMENT = re.compile(rf"{_ARGUMENT_NAME}(?:=|\s+)[\"']?(?=[^\s;&|$\"'-])", re.ASCII | re.IGNORECASE)
"""Finds secret arguments with a value, except another variable's: `--hf-token=…`, `wandb.api_key=…`."""
_LOGIN = re.compile(
    r"\blogin\b.*\s-[a-z]*p[\s=]*[\"']?[^\s$\"'-]|\b(?:wandb|ngc|hf)\s+(?:auth\s+)?login\s+[\"']?[^\s$\"'-]"
    r"|\bcurl\b.*\s(?:-u|--user)[\s=]*[\"']?[^\s:$\"']+:[^\s$\"']",
    re.ASCII,
)
"""Finds commands that take a password or key as an argument: `docker login -p …`, `wandb login …`."""

MOST_BYTES = 128 << 10
"""Most bytes of all variables together, so that none is above Linux's limit for a single one."""

_SECRET = re.compile(rf"(?:{SENSITIVE_WORDS}|(?:^|_)(?:PAT|PASS|AUTH))$", re.IGNORECASE)

SAFE_PLACE = (
    "put it into a file on the cluster that only you can read, and let a line of 'setup' in the cluster's "
    "file source that"
)
"""What to do with a secret that a job needs."""


def leads_to_code(name: str) -> bool:
    """Return whether an environment variable can make processes load code, or change how containers start."""
    return any(fnmatchcase(name, pattern) for pattern in _LEAD_TO_CODE)


def is_secret_name(name: str) -> bool:
    """Return whether the name of a variable says that its value is a secret."""
    return _SECRET.search(name) is not None


def hide_passwords(text: str) -> str:
    """Return a text with `***` for the passwords in its addresses."""
    return PASSWORD_IN_ADDRESS.sub(r"\g<before>***", text)


def find_secret(text: str) -> str:
    """Return what in a text seems to be a secret, or "".

    The answer ends a sentence that begins with where the text is: `has an address with a password`. The text
    is the value of a variable, or arguments of a command, separated by blanks.
    """
    if PASSWORD_IN_ADDRESS.search(text):
        return "has an address with a password"
    if ACCESS_TOKEN.search(text):
        return "has what looks like an access token or a private key"
    return "sets what looks like a secret" if _ARGUMENT.search(text) else ""


def find_secret_in_line(line: str) -> str:
    """Return what in a line of bash seems to be a secret, as the end of a sentence; "" if nothing does.

    Besides what `find_secret` finds, these are logins, and values of variables with names such as `API_KEY`.
    """
    if _LOGIN.search(line) or any(map(is_secret_name, _ASSIGNED.findall(line))):
        return "sets what looks like a secret"
    return find_secret(line)


def checked_environment(environment: dict[str, str]) -> dict[str, str]:
    """Check environment variables as a pydantic validator; return them, or raise ValueError."""
    try:
        check_environment(environment)
    except UserError as error:
        raise ValueError(str(error).removeprefix("environment: ").rstrip(".")) from None
    return environment


def check_arguments(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return a script's arguments by name; raise UserError for the first that seems to be a secret."""
    for name, value in arguments.items():
        if problem := find_secret(f"--{name}={value}"):
            raise UserError(
                f"argument '{one_line(name)}' {problem}, and a job's command is recorded and shown: "
                f"{SAFE_PLACE}."
            )
    return dict(arguments)


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise UserError if the variables are too large together, or for the first that is not allowed.

    The message never contains a secret value.
    """
    # Each is `NAME=value` with a zero byte at its end.
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in environment.items())
    if size > MOST_BYTES:
        longest = max(environment, key=lambda name: len(environment[name]))
        raise UserError(
            f"environment: the variables take {size:,} bytes, and a job may have {MOST_BYTES:,}: shorten "
            f"'{one_line(longest)}', or put its value into a file that the job reads."
        )
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise UserError(
                f"environment: '{one_line(name)}' is not a variable name: use letters, digits and _, "
                "not beginning with a digit."
            )
        if name in _OWN or name.startswith(_OWN_PREFIXES):
            raise UserError(
                f"environment: '{name}' is set by the job script or the cluster itself: leave it out."
            )
        if problem := "looks like a secret" if is_secret_name(name) else find_secret(value):
            raise UserError(
                f"environment: '{name}' {problem}, and a job's environment is recorded and shown: "
                f"{SAFE_PLACE}."
            )
        if "\n" in value:
            raise UserError(
                f"environment: the value of '{name}' has a line break, after which containers would read "
                "another variable: write it in one line."
            )
        if "\0" in value:
            raise UserError(
                f"environment: the value of '{name}' has a NUL character, which variables "
                f"cannot have: remove it."
            )
