"""A login node with programs in the place of Slurm's, which answer as a test says and write down their calls.

The node is a real sshd: what is written down is what reaches a cluster, with its time limit and environment.
"""

import re
import shlex

from pydantic import BaseModel

from steptime.errors import SystemFailure, UserError

from .ssh_site import connection, known

NOW = 1_790_000_000

_PROGRAM = r"""#!/bin/sh
here=${0%/bin/*} name=${0##*/}
caller=$PPID
read -r of_caller </proc/$PPID/comm
[ "$of_caller" = timeout ] || caller=$$
{ cat "/proc/$caller/cmdline"; echo; } >>"$here/calls"
env >"$here/environment"
case $name in s*) read -r input && echo "$input" >"$here/input" ;; esac
for answer in "$here/answers/$name".*; do
    [ -e "$answer" ] || exit 0
    . "$answer"
    case $answer in *.last) ;; *) rm "$answer" ;; esac
    exit "$code"
done
"""
_PROGRAMS = ("squeue", "sbatch", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr", "srun")
_PROGRAMS += ("date", "id", "uname")
_ENVIRONMENT = (
    *("SLURM_CONF=/etc/slurm.conf", "SLURM_TIME_FORMAT=relative"),
    *("SQUEUE_PARTITION=other", "SBATCH_ACCOUNT=other"),
    "SHLVL=1",  # below another shell, bash reads no .bashrc
)
"""What a site may set for its logins."""


class ScriptedSlurm:
    """The login node, and the tale of what is asked there: calls, answers to steptime, and files."""

    def __init__(self, site, work_dir):
        self.work_dir = work_dir
        self.tale = []
        self._folder = site.folder / "slurm"
        for name in ("bin", "answers"):
            (self._folder / name).mkdir(parents=True)
        for name in _PROGRAMS:
            program = self._folder / "bin" / name
            program.write_text(_PROGRAM)
            program.chmod(0o755)
        keys = site.keys("user")
        path = f"PATH={self._folder}/bin:/usr/local/bin:/usr/bin:/bin"
        self._host = site.host("login", f"SetEnv {' '.join((path, *_ENVIRONMENT))}", authorized=keys.public)
        self.connections = known({"login": connection(self._host, keys)})

    async def tell(self, what, doing, **answers):
        """Add to the tale what `doing` asks of Slurm and what comes of it; programs answer with `answers`.

        Of a list the last one is repeated; a program without an answer prints nothing.
        """
        for file in (self._folder / "answers").iterdir():
            file.unlink()
        (self._folder / "calls").write_bytes(b"")
        for program, given in {"date": str(NOW), **answers}.items():
            several = given if isinstance(given, list) else [given]
            for number, answer in enumerate(several):
                last = ".last" if number == len(several) - 1 else ""
                (self._folder / "answers" / f"{program}.{number}{last}").write_text(_says(answer))
        try:
            result = await doing
            came = _shown(result)
        except (SystemFailure, UserError) as error:
            result, came = error, f"{type(error).__name__}: {error}"
        called = (self._folder / "calls").read_text().splitlines()
        calls = ["$ " + shlex.join(line.rstrip("\0").split("\0")) for line in called]
        self.tale.append("\n".join([f"== {what}", *calls, *([f"-> {came}"] if came else [])]))
        return result

    def show_files(self):
        """Add the files below `work_dir` to the tale."""
        files = sorted(path for path in self.work_dir.rglob("*") if path.is_file())
        self.tale.append(
            "\n".join(f"file {path.relative_to(self.work_dir)}: {path.read_text().strip()}" for path in files)
        )

    def told(self):
        """Return the tale without what differs from run to run."""
        assert not (self._folder / "input").exists(), "a command gets nothing to read"
        environment = (self._folder / "environment").read_text().splitlines()
        of_slurm = "\n".join(sorted(line for line in environment if re.match("S[A-RT-Z]+_", line)))
        text = "\n\n".join([f"== the environment of each command\n{of_slurm}", *self.tale]) + "\n"
        for columns in dict.fromkeys(re.findall(r"-([Ff]ormat=[^ '%]{40,})", text)):
            text = text.replace(columns, f"{columns[:7]}…").replace("\n", f"\n{columns}\n", 1)
        for word, place in {
            str(self.work_dir): "WORK_DIR",
            f"/bin/sh {self._folder}/bin/": "",
            f"{self._folder}/bin/": "",
            f":{self._host.port}": ":PORT",
        }.items():
            text = text.replace(word, place)
        return text


def _says(answer):
    code, out, error = 0, "", ""
    if isinstance(answer, int):
        code = answer
    elif isinstance(answer, tuple):
        code, error = answer
    else:
        out = answer
    return f"printf %s {shlex.quote(out)}\nprintf %s {shlex.quote(error)} >&2\ncode={code}\n"


def _shown(result):
    if isinstance(result, dict):
        return "\n   ".join(f"{name}: {_shown(value)}" for name, value in result.items())
    if isinstance(result, BaseModel):
        return result.model_dump_json(exclude_defaults=True)
    return "" if result is None else str(result)


def squeue_line(job_id, state, **fields):
    """Return a line of squeue; a field that is not given is that of a job `night` which has not begun.

    Its exit code is of the form of Slurm 23.02 and later; the real Slurm of the tests may be an older one.
    """
    shown = {
        **{"exit": "0:0", "submitted": NOW - 100, "started": "N/A", "ended": "N/A", "nodes": ""},
        **{"name": "night", "reason": "None", "directory": "", **fields},
    }
    return "|".join(map(str, [job_id, state, *shown.values()])) + "|\n"


def sacct_line(job_id, state, **fields):
    """Return a line of sacct, as `squeue_line` does."""
    return squeue_line(job_id, state, **fields).removesuffix("|\n") + "\n"
