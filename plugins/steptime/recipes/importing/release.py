"""Read a release of NVIDIA/exemplar-performance, and record what its launch scripts would submit.

Upstream's code runs in a bubblewrap sandbox without network. It can read only the system's programs, the
release and Megatron-Bridge, and write only to memory and to one folder for its answers.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which
from typing import Any

import yaml

from steptime.errors import SystemFailure, UserError, one_line
from steptime.files import read_limited

_RECORDER = Path(__file__).parent / "recorder"
BRIDGE_FOLDERS = ("scripts", "src/megatron/bridge")
"""Folders of Megatron-Bridge with the code that launches recipes."""
_MODE_VARIABLES = {"checkpoint": {"ENABLE_CHECKPOINT": "true"}, "profile": {"ENABLE_PROFILE": "true"}}


@dataclass(frozen=True)
class UpstreamRun:
    """A run of a release: one entry of its metadata.yaml at one number of GPUs."""

    size: str
    gpu_type: str
    dtype: str
    """Number format as in upstream's metadata, such as `fp8`."""
    gpus: int
    like: str | None = None
    """GPU type that the launch script is asked for, if it does not know `gpu_type`, which Megatron-Bridge
    does."""

    def __str__(self) -> str:
        return f"{self.size} {self.dtype} on {self.gpus} {self.gpu_type}"


@dataclass(frozen=True)
class UpstreamRecipe:
    """One recipe of a release of NVIDIA/exemplar-performance: a folder with metadata.yaml and launch.sh."""

    folder: str
    name: str
    """Upstream's name of the workload, such as `gpt_oss`."""
    title: str
    runs: tuple[UpstreamRun, ...]
    proxies: int
    """Number of runs of proxies (smaller models), which are not imported."""
    images: Mapping[str, str]
    """Image by GPU type."""
    commits: Mapping[str, str]
    """Commit of Megatron-Bridge by GPU type."""
    script: str
    downloads: tuple[str, ...] = ()
    """Repositories that the recipe downloads from the Hugging Face hub."""

    def also_on(self, gpu_type: str, like: str) -> "UpstreamRecipe":
        """Return the recipe with the runs of GPU type `like` on a type that it does not list, too."""
        runs = tuple(replace(run, gpu_type=gpu_type, like=like) for run in self.runs if run.gpu_type == like)
        if not runs or gpu_type in self.images:
            return self
        return replace(
            self,
            runs=self.runs + runs,
            images={**self.images, gpu_type: self.images[like]},
            commits={**self.commits, gpu_type: self.commits[like]},
        )


@dataclass
class Release:
    """The recipes of a release of NVIDIA/exemplar-performance, and what cannot be imported."""

    version: str
    """Version of the release, such as `26.08.00`."""
    folder: Path
    sources: list[UpstreamRecipe] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Folders and runs of exemplar.yaml that are not imported, and why."""

    @property
    def tag(self) -> str:
        """The release's git tag."""
        return f"v{self.version}"

    def text(self, path: str) -> str:
        """Return the text of a file of the release, given by its path in it."""
        return read_limited(self.folder / path).decode()


def unpack_commit(repository: Path, commit: str | None, into: Path, *paths: str) -> Path:
    """Unpack `paths` of a repository at a commit into `into`, unless that exists; return `into`.

    Without a commit, return the repository itself. Raises UserError if there is no such commit.
    """
    if commit is None:
        return repository
    if not into.exists():
        command = ["git", "-C", str(repository), "archive", "--format=tar", commit, "--", *paths]
        archived = subprocess.run(command, capture_output=True, check=False)
        if archived.returncode:
            words = archived.stderr.decode(errors="replace").strip().splitlines() or ["no git repository"]
            raise UserError(
                f"'{repository}' has no {commit}: {one_line(words[-1])}. Fetch the commit there, or "
                "name another repository."
            )
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{into.name}.", dir=into.parent) as folder:
            part = Path(folder) / "files"
            part.mkdir()
            # Not by tarfile, whose safe way of unpacking the Python 3.11.2 of Debian 12 does not have.
            subprocess.run(["tar", "-x", "-C", str(part)], input=archived.stdout, check=True)  # noqa: S607
            part.rename(into)
    return into


def read_release(folder: Path) -> Release:
    """Read the metadata of all recipes in a checkout of NVIDIA/exemplar-performance.

    Raises UserError if the folder is no such checkout.
    """
    try:
        version = str(yaml.safe_load(read_limited(folder / "release.yaml"))["llmb_version"])
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UserError(
            f"'{folder}' is not a checkout of NVIDIA/exemplar-performance: its release.yaml has no "
            f"llmb_version ({one_line(str(error))}). Name the folder of a checkout, or a repository with "
            "--tag."
        ) from error
    release = Release(version, folder)
    for path in sorted(folder.rglob("metadata.yaml")):
        name = path.parent.relative_to(folder).as_posix()
        metadata = yaml.safe_load(read_limited(path))
        general, run = metadata["general"], metadata["run"]
        kind, framework = general.get("workload_type"), general.get("framework")
        if (kind, run.get("launcher_type")) != ("pretrain", "megatron_bridge"):
            release.left_out[name] = f"is {kind} with {framework}, and not pre-training with Megatron-Bridge"
            continue
        types = run["gpu_configs"]
        repositories = {gpu_type: _for_gpu(metadata["repositories"], gpu_type) for gpu_type in types}
        release.sources.append(
            UpstreamRecipe(
                folder=name,
                name=general["workload"],
                title=general.get("display_name", general["workload"]),
                runs=tuple(_runs(types, "scales")),
                proxies=sum(1 for _ in _runs(types, "proxy_scales")),
                images={
                    gpu_type: _for_gpu(metadata["container"]["images"], gpu_type)[0].replace("#", "/")
                    for gpu_type in types
                },
                commits={gpu_type: repositories[gpu_type]["megatron_bridge"]["commit"] for gpu_type in types},
                script=run.get("launch_script", "launch.sh"),
                downloads=_downloads(metadata.get("downloads") or {}),
            )
        )
    return release


def _downloads(described: Mapping[str, Any]) -> tuple[str, ...]:
    hub = described.get("huggingface") or ()
    return tuple(
        repository["repo_id"] for repository in (hub.get("repos", ()) if isinstance(hub, Mapping) else hub)
    )


def _for_gpu(values: Any, gpu_type: str) -> Any:
    by_gpu = values.get("by_gpu") if isinstance(values, Mapping) else None
    return values if by_gpu is None else by_gpu.get(gpu_type, by_gpu.get("default"))


def _runs(types: Mapping[str, Any], scales: str) -> Iterator[UpstreamRun]:
    """Yield a run for each GPU type, model size, dtype and GPU count of a metadata.yaml.

    `types` is its `gpu_configs`. `scales` is the key of the lists of GPU counts: a model has one list beside
    the key `dtypes`, or each dtype has its own.
    """
    for gpu_type, described in types.items():
        for model in described["model_configs"]:
            dtypes = model["dtypes"]
            for dtype in [dtypes] if isinstance(dtypes, str) else dtypes:
                of_dtype = dtypes[dtype] if isinstance(dtypes, Mapping) else None
                of_dtype = {"scales": of_dtype} if isinstance(of_dtype, list) else of_dtype or {}
                for gpus in sorted(of_dtype.get(scales, model.get(scales, ()))):
                    yield UpstreamRun(model["model_size"], gpu_type, dtype, int(gpus))


class Sandbox:
    """Runs NVIDIA's code with read-only access to the release and its Megatron-Bridge commits.

    Raises UserError if bubblewrap is not installed.
    """

    def __init__(self, release: Path, bridges: Path, shared: Path) -> None:
        bwrap = which("bwrap")
        if bwrap is None:
            raise UserError(
                "upstream's code runs in a sandbox, and bwrap is not installed: install bubblewrap."
            )
        python = Path(sys.executable).resolve()
        home = Path(sys.base_prefix).resolve()
        self.python, self.shared, self.bridges = str(python), shared, bridges
        self.command = [
            *(
                bwrap,
                "--unshare-all",
                "--die-with-parent",
                "--new-session",
                "--clearenv",
                "--cap-drop",
                "ALL",
            ),
            *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
            *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108
            *(() if home.is_relative_to("/usr") else ("--ro-bind", str(home), str(home))),
            *(
                "--tmpfs",
                "/llmb",
                "--ro-bind",
                str(release),
                "/release",
                "--ro-bind",
                str(bridges),
                "/bridge",
            ),
            *("--ro-bind", str(_RECORDER), "/recorder", "--bind", str(shared), "/shared"),
        ]

    def answers(self, script: str, questions: Sequence[Any], *arguments: str) -> list[Any]:
        """Run a recorder script in the sandbox; return its answers, one for each question.

        Raises SystemFailure with the script's last output if it fails.
        """
        question_file, answer_file = self.shared / "questions.json", self.shared / "answers.json"
        question_file.write_text(json.dumps(questions))
        answer_file.unlink(missing_ok=True)
        paths = ("/shared/questions.json", "/shared/answers.json")
        command = [*self.command, self.python, "-S", f"/recorder/{script}", *arguments, *paths]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode or not answer_file.exists():
            words = (ended.stderr or ended.stdout).strip().splitlines() or ["nothing is said"]
            raise SystemFailure(f"{script} failed in its sandbox: {one_line(words[-1])}")
        answers: list[Any] = json.loads(answer_file.read_text())
        return answers


def names_batch(commit: str, sandbox: Sandbox) -> bool:
    """Return whether a Megatron-Bridge commit puts the actual global batch size into experiment names.

    Until February 2026 the name had the batch size of the recipe's default number of GPUs, not scaled.
    """
    text = (sandbox.bridges / commit / "scripts/performance/utils/utils.py").read_text(encoding="utf-8")
    function = text.partition("def get_exp_name_config(")[2].partition("\ndef ")[0]
    return not function or "gbs_scaling_factor" in function or "scaled_global_batch_size" in function


def record_jobs(
    source: UpstreamRecipe, sandbox: Sandbox, mode: str | None = None
) -> dict[UpstreamRun, dict[str, Any]]:
    """Return for each run of a recipe the job that its launch script would submit.

    If the script refuses a run, its entry is `{"refused": REASON}`. `mode` is `checkpoint` or `profile` to
    have the script turn this on, None for a plain run.
    """
    questions = [
        launch_question(
            f"{source.folder}/{source.script}",
            f"pretrain_{source.name}",
            source.commits[run.gpu_type],
            {
                **{"MODEL_SIZE": run.size, "DTYPE": run.dtype, "GPU_TYPE": run.like or run.gpu_type},
                **{"JOB_TOTAL_GPUS": str(run.gpus)},
                **_MODE_VARIABLES.get(mode or "", {}),
            },
        )
        | ({"gpu": run.gpu_type} if run.like else {})
        for run in source.runs
    ]
    return dict(zip(source.runs, sandbox.answers("record.py", questions), strict=True))


def launch_question(script: str, workload: str, commit: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the question to `recorder/record.py` for a launch script that starts Megatron-Bridge.

    Args:
        script: path of the script in the release.
        workload: name of the folder in which the script looks for Megatron-Bridge.
        commit: name of the folder with Megatron-Bridge in the sandbox's `bridges`.
        variables: what the script is asked for.
    """
    folder, _, name = script.rpartition("/")
    return {
        "folder": f"/release/{folder}",
        "script": name,
        "links": {f"workloads/{workload}/Megatron-Bridge": f"/bridge/{commit}"},
        "variables": {
            **{"LLMB_INSTALL": "/llmb", "SBATCH_ACCOUNT": "none", "SBATCH_PARTITION": "none"},
            **{"HF_TOKEN": "none", **variables},
        },
    }


def unpack_pinned(sources: Sequence[UpstreamRecipe], repository: Path, into: Path) -> Path:
    """Unpack all Megatron-Bridge commits that recipes name; return the folder with one subfolder for each.

    Raises UserError if a name is not a commit id, or the repository lacks the commit.
    """
    for commit in sorted({commit for source in sources for commit in source.commits.values()}):
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise UserError(
                f"'{one_line(commit)}' in the release's metadata is not a commit id of Megatron-Bridge, "
                "which has 40 hexadecimal digits."
            )
        unpack_commit(repository, commit, into / commit, *BRIDGE_FOLDERS)
    return into
