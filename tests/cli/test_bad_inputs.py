"""Bad inputs as users make them: each gets one clear sentence and the right exit code, and leaves nothing.

This is a table of commands, with the environment and the broken file that each needs. What single functions
refuse is tested beside them; here everything goes through the entry point `steptime`.
"""

import errno
import gzip
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
import typer
from called import steptime
from logs import line_forms

from steptime import settings
from steptime.cli import main
from steptime.errors import SystemFailure, UserError

LLAMA = "workloads/llama3.1-25.04.yaml"
CLUSTER = "clusters/local.yaml"
PLAN = "plan llama3.1"
METRICS = "metrics --workload llama3.1 --size 8b --dtype bf16 --gpu-type h100 --gpus 8"
RUN_ELSEWHERE = "run llama3.1 --user ada --url"
PASSWORD = MappingProxyType({"STEPTIME_AIRFLOW_PASSWORD": "not-to-be-shown"})
NOTHING = MappingProxyType({})


class Bad(NamedTuple):
    """A command that must fail. HERE is an empty folder that gets the files `files` and nothing else."""

    name: str
    command: str
    sentence: str
    exit_code: int = 1
    environment: Mapping[str, str] = NOTHING
    config: tuple[str, str, str] | None = None
    """A file of config/, the text to replace in it (all of it where this is empty), and the replacement."""
    files: Mapping[str, str] = NOTHING


FLAGS = [
    Bad(
        "no such command",
        "paln llama3.1",
        "unknown command 'paln' of 'steptime': did you mean 'plan'? Valid are:",
    ),
    Bad(
        "filter before a command",
        "results --gpus 2 trend",
        "--gpus has no effect before 'trend': put it after",
    ),
    Bad("typo in a flag", f"{PLAN} --sise 8b", "unknown option '--sise' of 'steptime plan': did you mean"),
    Bad(
        "workload as an option",
        "plan --workload llama3.1",
        "'steptime plan' takes this without '--workload': steptime plan WORKLOAD.",
    ),
    Bad(
        "sweep as an option",
        "sweep plan --sweep weekly",
        "'steptime sweep plan' takes this without '--sweep': steptime sweep plan NAME.",
    ),
    Bad("flag unlike all others", "sweep run weekly --dry", "'--dry' of 'steptime sweep run'. Valid are:"),
    Bad("flag without its value", f"{PLAN} --size", "Option '--size' requires an argument."),
    Bad("missing argument", "sweep plan", "Missing argument 'NAME'. See 'steptime sweep plan --help'."),
    Bad("text for a number", f"{PLAN} --max-steps many", "--max-steps 'many': has to be a whole number."),
    Bad("unknown format", "status --format jsno", "unknown format 'jsno': did you mean 'json'? Valid are:"),
    Bad("variable without a value", f"{PLAN} --env A", "--env 'A' is not of the form NAME=VALUE."),
    Bad("same variable twice", f"{PLAN} --env A=1 --env A=2", "--env gives 'A' twice: keep one."),
]
PLANS = [
    Bad(
        "a model that cannot fit",
        f"{PLAN} --size 405b --gpus 512 --tensor-parallel 1",
        "or insist on it by --ignore-memory.",
    ),
    Bad("two lines as size", f"{PLAN} --size '8b\n70b'", r"unknown size '8b\n70b' of llama3.1-25.04: did"),
    Bad("long text as window", f"{PLAN} --window {'9' * 5000}:1", f"window '{'9' * 79}…' is not of the"),
    Bad("script for other GPUs", f"{PLAN} --size 8b --show-script", "cluster 'local' has cpu, not h100"),
]
NUMBERS = [
    Bad("step time of no size", f"{METRICS} --step-time 1e-320", "a step time of 9.99989e-321 s at a peak"),
    Bad(
        "batch beyond floats", f"{METRICS} --step-time 1 --gbs 128{'0' * 400}", "must be at most 1000000000."
    ),
    Bad("peak without an end", f"{METRICS} --step-time 1 --peak-tflops inf", "--peak-tflops inf: must be a"),
]
CONFIG = [
    Bad("no config folder", PLAN, "STEPTIME_CONFIG_DIR 'gone' does not", 1, {"STEPTIME_CONFIG_DIR": "gone"}),
    Bad("config is a file", PLAN, "'it' cannot be used as a folder: it", 1, {"STEPTIME_CONFIG_DIR": "it"}),
    Bad(
        "code in YAML",
        PLAN,
        "is not valid YAML",
        config=(LLAMA, "title: ", "title: !!python/object/apply:os.abort #"),
    ),
    Bad(
        "another's name",
        "recipes --workload x",
        "differs from the file's name, 'x-1.0'",
        config=("workloads/x-1.0.yaml", "", LLAMA),
    ),
    Bad(
        "cluster of an unknown GPU",
        PLAN,
        "unknown GPU type 'h10'",
        config=(CLUSTER, "gpu_type: cpu", "gpu_type: h10"),
    ),
    Bad(
        "cluster of no kind",
        f"{PLAN} --show-script",
        "kind of cluster",
        config=(CLUSTER, "kind: ", "kind: x"),
    ),
]
LOGS = [
    Bad("no such log", "parse nothing.out", "no log or folder at 'nothing.out'"),
    Bad("name beyond any file's", f"parse {'x' * 300}", "File name too long"),
    Bad(
        "window of a log backwards",
        "parse a.out --window 9:3",
        "window '9:3' ends before",
        files={"a.out": ""},
    ),
]
STATE = [
    Bad("home is a file", "status", "STEPTIME_HOME 'it' cannot be used as a", 1, {"STEPTIME_HOME": "it"}),
    Bad(
        "home of nobody",
        "status",
        "STEPTIME_HOME '~nobody-here/x' cannot",
        1,
        {"STEPTIME_HOME": "~nobody-here/x"},
    ),
    Bad("home cannot be made", "up", "'/proc/steptime' cannot be", 2, {"STEPTIME_HOME": "/proc/steptime"}),
    Bad("store of no kind", "results", "STEPTIME_STORE_URL is no", 1, {"STEPTIME_STORE_URL": "results.db"}),
    Bad(
        "store without a path",
        "results",
        "write an absolute path",
        1,
        {"STEPTIME_STORE_URL": "sqlite:///results.db"},
    ),
    Bad(
        "store that is a text",
        "results",
        "file is not a database",
        2,
        {"STEPTIME_STORE_URL": "sqlite:///HERE/it"},
    ),
    Bad(
        "store that does not answer",
        "results",
        "postgresql://127.0.0.1:1/x failed",
        2,
        {"STEPTIME_STORE_URL": "postgresql://ada:not-to-be-shown@127.0.0.1:1/x"},
    ),
    Bad(
        "a run of an empty store",
        "results show x",
        "there are no results to show, as there is no metrics store",
    ),
    Bad(
        "nodes of no store", "results nodes nodes", "there are no results to compare, as there is no metrics"
    ),
    Bad("metrics to a folder", "results metrics -o HERE", "is a folder: name a file in it"),
    Bad(
        "an archive that exists",
        "archive -o a.tar.zst",
        "'a.tar.zst' exists already",
        files={"a.tar.zst": ""},
    ),
    Bad("plugins that are no text", "slurm up --plugstack /proc/self/exe", "is not text: name a plugstack"),
]
AIRFLOW = [
    Bad("no Airflow", "run llama3.1 --wait", "Airflow is not running: start it with 'steptime up'", 2),
    Bad("no user", "run llama3.1 --url http://127.0.0.1:1", "--url needs a user"),
    Bad("no address", f"{RUN_ELSEWHERE} nonsense", "'nonsense' is not an address of the form"),
    Bad("half an address", f"{RUN_ELSEWHERE} http://[", "'http://[' is not an address of the form"),
    Bad(
        "password in the address", f"{RUN_ELSEWHERE} http://a:not-to-be-shown@h", "the address of h contains"
    ),
    Bad("no password", f"{RUN_ELSEWHERE} http://127.0.0.1:1", "the password of 'ada' is missing: set"),
    Bad(
        "nobody there",
        f"{RUN_ELSEWHERE} http://127.0.0.1:1",
        "no Airflow answers at http://127.0.0.1:1",
        2,
        PASSWORD,
    ),
]


@pytest.mark.parametrize(
    "bad",
    [*FLAGS, *PLANS, *NUMBERS, *CONFIG, *LOGS, *STATE, *AIRFLOW],
    ids=lambda bad: bad.name.replace(" ", "-"),
)
def test_one_sentence_and_nothing_else(bad, here, monkeypatch, capsys):
    for name, content in {"it": "a text", **bad.files}.items():
        (here / name).write_text(content)
    for name, value in bad.environment.items():
        monkeypatch.setenv(name, value.replace("HERE", str(here)))
    if bad.config:
        _break_config(here, monkeypatch, *bad.config)
    before = sorted(here.rglob("*"))

    exit_code = steptime(*shlex.split(bad.command.replace("HERE", str(here))))

    printed = capsys.readouterr()
    assert bad.sentence in printed.err
    assert (exit_code, printed.out) == (bad.exit_code, "")
    assert printed.err.startswith("steptime: ")
    assert printed.err.count("\n") == 1, "one line"
    assert len(printed.err) < 1000
    assert ".." not in re.sub(r"\.\./|PATH\.\.\.", "", printed.err), "one full stop"
    assert "not-to-be-shown" not in printed.err
    assert sorted(here.rglob("*")) == before, "no file or folder is made"


def _break_config(here, monkeypatch, name, old, new):
    shutil.copytree(settings.shipped("config"), here / "config")
    file = here / "config" / name
    if old:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))
    else:
        source = here / "config" / new
        file.write_text(source.read_text() if new and source.is_file() else new)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(here / "config"))


WHOLE = line_forms.nemo2_log()
BAD_LOGS = {
    "binary": (
        "log-a.out",
        bytes(range(256)) * 1000,
        "failed",
        "no training step in the log's 256,000 bytes",
    ),
    "cut archive": ("log-a.out.gz", gzip.compress(WHOLE)[:-100], "incomplete", "is cut or damaged"),
    "another log's window": ("log-a.out", WHOLE, "incomplete", "the log holds 15 of the window's 30 steps"),
    "hostile name": (
        "log-\x1b[31m[bold]\n.out",
        b"",
        "failed",
        r"\x1b[31m[bold]\n: failed: the log is empty",
    ),
}


@pytest.mark.parametrize("kind", BAD_LOGS)
def test_a_bad_log_is_a_row_with_its_reason(kind, here, capsys):
    name, content, state, reason = BAD_LOGS[kind]
    (here / name).write_bytes(content)
    assert steptime("parse", name, "--window", "35:64", "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)["logs"]
    assert row["state"] == state
    assert steptime("parse", name, "--window", "35:64") == 0
    printed = capsys.readouterr()
    assert reason in printed.out
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_a_fault_of_our_own_is_no_traceback_and_no_users_error(here, monkeypatch, capsys):
    def fail():
        raise KeyError("forgotten")

    monkeypatch.setattr("steptime.cli.recipes.load_workloads", fail)
    assert steptime("recipes") == 2
    assert capsys.readouterr().err == (
        "steptime: a fault of steptime itself, KeyError: 'forgotten'. Please report it with what "
        "STEPTIME_DEBUG=1 shows.\n"
    )
    monkeypatch.setenv("STEPTIME_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["steptime", "recipes"])
    with pytest.raises(KeyError, match="forgotten"):
        main()


@pytest.mark.parametrize(
    ("error", "sentence", "exit_code"),
    [
        (UserError("no such size"), "no such size", 1),
        (SystemFailure("the server is away"), "the server is away", 2),
        (typer.Abort(), "stopped.", 2),
        (OSError(errno.EIO, "I/O error"), "cannot go on: I/O error.", 2),
        (OSError(errno.EACCES, "Denied", "a.csv"), "'a.csv' cannot be used: Denied.", 2),
        (
            OSError(errno.EISDIR, "Is a folder", ".a.new", None, "a.csv"),
            "'a.csv' cannot be used: Is a folder.",
            2,
        ),
    ],
    ids=str,
)
def test_each_kind_of_error_is_one_sentence_with_its_exit_code(
    error,
    sentence,
    exit_code,
    monkeypatch,
    capsys,
):
    def fail():
        raise error

    monkeypatch.setattr("steptime.cli.recipes.load_workloads", fail)
    assert (steptime("recipes"), capsys.readouterr().err) == (exit_code, f"steptime: {sentence}\n")
