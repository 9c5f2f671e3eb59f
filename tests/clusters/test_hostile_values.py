"""Every text that a user can give, with values that try to be code: refused in a sentence, or kept as data.

What is not refused becomes a job script for Slurm, which bash really runs here, with stand-ins for Slurm's
commands. A canary file, which no value may create, shows whether a value ran as code.
"""

import shutil
from pathlib import Path

import pytest
from called import captured
from staged import staged_files

from steptime import settings
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import job_spec
from steptime.errors import UserError
from steptime.recipes.planning import parse_request, plan
from steptime.recipes.request import PlanRequest

CLUSTER = """\
name: hostile
kind: slurm
gpu_type: cpu
work_dir: {work_dir}
connection: hostile
"""
HOSTILE = {
    "substitution": "$(touch canary)",
    "backticks": "`touch canary`",
    "single quotes": "'; touch canary; '",
    "double quotes": '"; touch canary; "',
    "new line": "x\ntouch canary\n",
    "directive": "x\n#SBATCH --wrap=touch canary\n",
    "carriage return": "x\r\ntouch canary",
    "escaped line end": "x\\\ntouch canary",
    "separator": "x; touch canary #",
    "pipe": "x|touch canary",
    "background": "x & touch canary",
    "redirection": "x > canary",
    "expansion": "${IFS}${PATH}~*?[a]",
    "template": "{{ 7 * 7 }}{% include 'local.sh.j2' %}",
    "line separator": "x\u2028touch canary\u2029",
    "next line": "x\x85touch canary",
    "vertical tab": "x\x0btouch canary",
    "nul": "x\0touch canary",
    "escape sequence": "\x1b[31mx",
    "right to left": "\u202ex",
    "option": "--wrap=touch canary",
    "long": "x" * 100_000,
    "empty": "",
    "blank": " ",
}
FIELDS = [name for name, field in PlanRequest.model_fields.items() if "str" in str(field.annotation)]
RECORDS = """\
#!/bin/sh
printf '%s\\0' "$@" > arguments
printf '%s' "$VALUE" > value
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Yield the `work_dir` of a Slurm cluster, with stand-ins for Slurm's commands."""
    work_dir = tmp_path_factory.mktemp("hostile")
    shutil.copytree(settings.shipped("config"), work_dir / "config")
    (work_dir / "config" / "clusters" / "hostile.yaml").write_text(CLUSTER.format(work_dir=work_dir))
    (work_dir / "commands").mkdir()
    for name, script in {"srun": RECORDS, "getent": "#!/bin/sh\n"}.items():
        (work_dir / "commands" / name).write_text(script)
        (work_dir / "commands" / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPTIME_CONFIG_DIR", str(work_dir / "config"))
        yield work_dir


def submitted(values, jobs, identity="hostile"):
    """Return the first job of a request, as it would be submitted. Raises UserError."""
    run = plan(parse_request({"workload": "llama3.1", "cluster": "hostile", "gpus": "2", **values})).runs[0]
    config = load_cluster(run.cluster)
    config.check(run)
    staged = staged_files(jobs / "venv" / "python", jobs / "trainer")
    return job_spec(run, staged, config, identity=identity, started=1)


def run_job(spec, jobs):
    """Run the script with bash as Slurm would; return the job's folder."""
    folder = Path(spec.directory)
    folder.mkdir(parents=True)
    for name, text in spec.files.items():
        (folder / name).write_text(text)
    script = folder / "job.sh"
    script.write_text(spec.script)
    ended = captured(
        ["/bin/bash", str(script)],
        cwd=folder,
        env={"PATH": f"{jobs / 'commands'}:/usr/bin:/bin", "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    return folder


def a_value_of(field, text):
    if field == "environment":
        return {field: {"VALUE": text}}
    if field == "load_checkpoint":
        return {field: f"/{text}"}
    return {field: text, **({"profile": True} if field == "profile_ranks" else {})}


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_text_is_refused_or_stays_data(field, jobs, subtests):
    for kind, text in HOSTILE.items():
        with subtests.test(kind):
            _is_refused_or_stays_data(field, kind, text, jobs)


def _is_refused_or_stays_data(field, kind, text, jobs):
    cannot_be = "\n" in text or kind == "nul"  # containers read the environment by lines
    try:
        spec = submitted(a_value_of(field, text), jobs, f"{field}/{kind}")
    except UserError as refusal:
        sentence = str(refusal)
        assert sentence.isprintable(), "one line, and nothing that a terminal obeys"
        assert len(sentence) < 1000
        assert field != "environment" or cannot_be
        return
    folder = run_job(spec, jobs)
    if field == "environment":
        assert not cannot_be
        assert (folder / "value").read_bytes() == text.encode()
    assert (folder / "arguments").read_bytes().split(b"\0")[-4:] == [b"-m", b"trainer", b"run.json", b""]
    assert not list(jobs.rglob("canary"))
