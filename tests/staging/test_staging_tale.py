"""What staging and the cluster check ask of a cluster, and what they say: commands, files, jobs and limits.

The tales are kept in tests/golden/staging. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/staging/test_staging_tale.py
"""

import json
import re
import shlex
from contextlib import asynccontextmanager

import pytest
from kept import assert_kept, masked

from steptime.clusters.base import CommandResult, Job, JobState, JobStatus
from steptime.clusters.slurm.config import SlurmConfig
from steptime.errors import SystemFailure, UserError
from steptime.staging import cluster_check
from steptime.staging.cluster_check import check_cluster
from steptime.staging.stage import find_image, stage

IMAGE = "nvcr.io/nvidia/nemo:25.04.01"
MASKED = {
    r"(?<=/trainer/)\.[0-9a-f]{16}\.[0-9a-f]{32}": "PARTIAL",
    r"(?<=/trainer/)[0-9a-f]{16}": "TRAINER",
    r"copying \d+ files": "copying N files",
    r"(?<=/staging/)[0-9a-f]{16}": "SCRIPTS",
    r"(?<=/venvs/trainer-)[0-9a-f]{16}": "LOCK",
    r"(?<=\.cluster-check-)[0-9a-f]{32}": "ID",
    r"(?<=stage-)[0-9a-f]{16}": "HASH",
    r"[0-9a-f]{64}": "SHA256",
}


class RecordedCluster:
    """A cluster that writes down what it is asked, and answers commands as a test says."""

    name = "far"

    def __init__(self, *, answers=None):
        self.asked = []
        self.files = {}
        self._polled = []
        self._answers = answers or {}

    async def run(self, argv, *, timeout_s=600, on_output=None):
        line = shlex.join(argv)
        self.asked.append(f"$ {re.sub(r'(?<=sha256sum -- ).*', '…', line)} [{timeout_s:g} s]")
        done = next((done for words, done in self._answers.items() if words in line), ok(""))
        for text in done.stdout.splitlines() if on_output else ():
            on_output(text)
        return done

    async def read(self, path, offset=0, limit=1 << 20):
        self.asked.append(f"read {path} from {offset}, {limit} bytes")
        return self.files.get(path, b"")[offset : offset + limit]

    async def write(self, path, data):
        if "/trainer/" not in path or path.endswith("__main__.py"):
            self.asked.append(f"write {path}")
        self.files[path] = data

    def local_path(self, path):
        return None

    def checks(self):
        return ()

    async def poll(self, names):
        state = JobState.UNKNOWN
        if len(names) == 1:
            of_job = (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED)
            state = of_job[self._polled.count(names[0])]
            self._polled.append(names[0])
        self.asked.append(f"poll {len(names)} from {names[0]}: {state}")
        reason = "Resources" if state is JobState.QUEUED else ""
        return {name: JobStatus(state=state, reason=reason) for name in names}

    async def find(self, name):
        return None

    async def submit(self, spec):
        self.asked.append(
            f"submit {spec.name}, at most {spec.time_limit_s} s, {spec.slots} slots:\n{spec.script}"
        )
        self.files[spec.log_path] = b"imported\n"
        return Job(
            cluster=self.name,
            name=spec.name,
            job_id="7",
            directory=spec.directory,
            log_path=spec.log_path,
            submitted_at=0,
        )


def ok(stdout):
    return CommandResult(exit_code=0, stdout=stdout, stderr="")


def failing(stderr, *, code=1, stdout=""):
    return CommandResult(exit_code=code, stdout=stdout, stderr=stderr)


PYTHON = {"import platform; print": ok("3.11.9\n")}


def far(**fields):
    default = {"name": "far", "kind": "slurm", "gpu_type": "h100", "connection": "far", "work_dir": "/work"}
    return SlurmConfig.model_validate({**default, "poll_interval_s": 0.01, **fields})


class Tale:
    def __init__(self):
        self.parts = []

    async def tell(self, what, cluster, doing, said):
        try:
            came = str(await doing)
        except (SystemFailure, UserError) as error:
            came = f"{type(error).__name__}: {error}"
        lines = [*cluster.asked, *(f"says {line}" for line in said), f"-> {came}"]
        self.parts.append(masked("\n".join([f"== {what}", *lines]), MASKED))

    def told(self):
        return "\n\n".join(self.parts) + "\n"


@pytest.fixture
def run(make_result):
    return make_result().run


def in_image(run, name=IMAGE):
    recipe = run.recipe.model_copy(update={"image": name})
    return run.model_copy(update={"recipe": recipe})


async def test_what_staging_asks_and_says(run):
    tale = Tale()
    full = "Collecting torch\nerror: No space left on device"
    away = "error: No matching distribution found for torch"
    record = json.dumps({"digest": f"sha256:{'d' * 64}", "sha256": "e" * 64}).encode()
    of_venv = {
        "an environment": PYTHON,
        "no Python": {"import platform; print": failing("python3: not found", code=127)},
        "another Python": {"import platform; print": ok("3.13.1\n")},
        "a full disk": {"build_venv": failing("", stdout=full), **PYTHON},
        "no index": {"build_venv": failing("", stdout=away), **PYTHON},
        "a crash": {"build_venv": failing("", stdout="Traceback", code=3), **PYTHON},
        "a trainer that cannot be moved": {"mv ": failing("mv: Read-only file system\n"), **PYTHON},
        "a changed trainer": {"sha256sum": ok("f00  a\n"), **PYTHON},
    }
    for what, answers in of_venv.items():
        cluster, said = RecordedCluster(answers=answers), []
        await tale.tell(what, cluster, stage(cluster, far(), run, said.append), said)  # type: ignore[arg-type]
    for what, fields, answers in (
        ("an image for pyxis", {"container": "pyxis"}, {}),
        ("an image for apptainer", {"container": "apptainer"}, {}),
        ("an image for bwrap", {"container": "bwrap"}, {}),
        ("an image in a job", {"container": "bwrap", "import_in_job": True, "import_partition": "cpu"}, {}),
        (
            "no login",
            {"container": "bwrap"},
            {"import_image": failing("", code=2, stdout="failed: log in first")},
        ),
        (
            "a broken import",
            {"container": "bwrap"},
            {"import_image": failing("", stdout="half\nfailed: reset")},
        ),
        ("a broken unpacking", {"container": "bwrap"}, {"unpack_image": failing("", stdout="half")}),
    ):
        cluster, said, config = RecordedCluster(answers=answers), [], far(**fields)
        for file in ("nvidia+nemo+25.04.01.sqsh", "nvidia+nemo+25.04.01.sif"):
            cluster.files[f"/work/images/{file}.json"] = record
        await tale.tell(what, cluster, stage(cluster, config, in_image(run), said.append), said)  # type: ignore[arg-type]
    for what, fields, answers in (
        ("look for an image", {}, {"--look": ok("asking nvcr.io\nthe registry has it\n")}),
        (
            "look for an image that cannot be",
            {},
            {"--look": failing("", code=2, stdout="failed: no such image")},
        ),
        ("nobody can tell", {}, {"--look": failing("", code=3)}),
        ("look for one of a job", {"import_in_job": True}, {}),
    ):
        cluster, config = RecordedCluster(answers=answers), far(container="bwrap", **fields)
        await tale.tell(what, cluster, find_image(cluster, config, IMAGE), [])  # type: ignore[arg-type]
    for number, part in enumerate(tale.parts[1:], 1):  # what all do alike stands in the first
        alike = [line for line in tale.parts[0].splitlines() if re.search("(TRAINER|SCRIPTS)", line)]
        tale.parts[number] = "\n".join(line for line in part.splitlines() if line not in alike)
    assert_kept("staging/stage.txt", tale.told())


async def test_what_a_cluster_check_asks_and_says(run, monkeypatch):
    tale = Tale()
    larger = run.recipe.model_copy(
        update={"parallelism": run.recipe.parallelism.model_copy(update={"data": 4})}
    )
    runs = (in_image(run.model_copy(update={"recipe": larger})), in_image(run, f"{IMAGE}-b"), in_image(run))
    for what, fields, answers, chosen in (
        ("all is well", {"container": "bwrap"}, {"--look": ok("it is there\n"), "bwrap": ok("0.8")}, runs),
        ("no container", {}, {"sbatch": failing("sbatch: error: no\n")}, runs),
        ("nothing to run", {"gpu_type": "b200"}, {"hashlib": failing("no attribute 'file_digest'")}, ()),
        ("a CPU", {"gpu_type": "cpu", "container": "pyxis"}, PYTHON, (run,)),
        (
            "nothing permitted",
            {"container": "bwrap", "permitted_images": ["x*"]},
            {"bwrap": failing("no")},
            runs,
        ),
        ("jobs import", {"container": "bwrap", "import_in_job": True}, {}, runs),
    ):
        cluster, said, config = RecordedCluster(answers=answers), [], far(**fields)

        @asynccontextmanager
        async def opened(*_, cluster=cluster):
            yield cluster

        monkeypatch.setattr(cluster_check, "open_cluster", opened)

        async def check(config=config, chosen=chosen, said=said):
            outcomes = await check_cluster(config, None, chosen, lambda outcome: said.append(str(outcome)))  # type: ignore[arg-type]
            return f"{len(outcomes)} outcomes"

        await tale.tell(what, cluster, check(), said)
    assert_kept("staging/check.txt", tale.told())
