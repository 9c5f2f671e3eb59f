"""The commands of the pages, in order, as scripts that a reader's shell could run.

Blocks without a language, or of `bash`, have commands; `yaml` that begins with `# config/…` is that file.
"""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(f"docs/guide/{name}.md" for name in ("first-run", "cluster", "workload", "weekly-sweep", "results")),
    "docs/guide/trial.md",
)
ELSEWHERE = {
    "docs/reference/install.md": "tests/versions/foreign_airflow.py installs it into an Airflow",
    "docs/reference/team-deployment.md": "make test-compose builds and starts it",
}
"""Pages whose commands another program runs."""
NOT_HERE = {
    # a pattern that the beginning of a command fits: the reason
    r"steptime (cluster (add|check)|run .*--cluster) selene": "there is no such cluster",
    r"steptime run llama3.1 --size 70b|steptime run nemotron3": "there are no such GPUs",
    r"python3\S* -m venv|~/steptime/bin/": "they are for another machine: tests/versions installs the wheel",
    r"steptime (sweep run weekly|trial (run|show) nccl-ring)": "it is for the cluster selene",
    r"steptime results trend --size 70b|steptime results import PATH": "there are no such runs",
}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def scripts():
    """Return the script of each page of `PAGES`, in order. The guide does not repeat what README has done."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    guide = {page: text.replace("```\nmake demo\n```\n", "") for page, text in texts.items()}
    return {page: script(page, text) for page, text in (guide | {PAGES[0]: texts[PAGES[0]]}).items()}


def script(page, text):
    """Return a page's commands as a script for bash that stops at the first one that fails.

    Commands of `NOT_HERE` are replaced by a line that says why they are not run.
    """
    lines = ["set -e", f"echo {shlex.quote(f'=== {page}')}"]
    for language, block in _BLOCK.findall(text):
        if language == "yaml" and (file := re.match(r"# (config/\S+\.yaml)", block)):
            lines += [f"mkdir -p {Path(file[1]).parent}", f"cat >{file[1]} <<'END'", block.rstrip(), "END"]
        elif language in ("", "bash"):
            for command in re.sub(r"\\\n\s*", "", block).splitlines():
                lines += _step(command)
    return "\n".join(lines) + "\n"


def _step(command):
    if not command or command.startswith("#"):
        return []
    bare = command.split(" #", maxsplit=1)[0].strip().removeprefix(".venv/bin/")
    reason = next((reason for pattern, reason in NOT_HERE.items() if re.match(pattern, bare)), None)
    if reason is not None:
        return [f"echo {shlex.quote(f'NOT RUN HERE, as {reason}: {bare}')}"]
    return [f"echo {shlex.quote(f'$ {command}')}", command]
