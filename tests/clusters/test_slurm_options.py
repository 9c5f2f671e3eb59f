"""Every option of sbatch: what happens to it in a run's request, and in a cluster's file."""

import re
from pathlib import Path

import pytest

from steptime.clusters.slurm.options import SlurmOptions, check_of_every_job
from steptime.errors import UserError

HELP = Path(__file__).parents[1] / "data" / "slurm" / "sbatch-help.txt"
"""The output of `sbatch --help` of Slurm 22.05.8 in Debian 12."""
NOT_IN_HELP = (
    *("acctg-freq", "hint", "kill-on-invalid-dep", "mem-bind", "network", "ntasks-per-gpu", "open-mode"),
    *("prefer", "test-only", "wait-all-nodes"),
    *("extra", "segment", "tres-bind", "tres-per-task"),  # in later releases
)
"""Options of sbatch that only its manual lists."""

BY_IT = "cannot be given, because steptime needs it to submit, follow and end its jobs: leave it out"
LEFT_OUT = "leave it out: steptime submits, follows and ends its jobs by it"
UNKNOWN = "unknown option of sbatch"
PASSES = ""

WHAT_BECOMES = (
    # what a run's request says, what a cluster's file says, and the options
    (
        *(BY_IT, LEFT_OUT),
        *("array", "chdir", "error", "gid", "help", "hold", "input", "job-name"),
        *(
            "kill-on-invalid-dep",
            "no-kill",
            "no-requeue",
            "open-mode",
            "output",
            "parsable",
            "priority",
            "test-only",
            "time-min",
            "uid",
            "usage",
        ),
        *("version", "wait", "wrap"),
    ),
    (BY_IT, "give that cluster a file of its own", "cluster-constraint", "clusters"),
    (BY_IT, "set variables in environment", "export", "export-file", "get-user-env"),
    (BY_IT, "write resubmissions", "requeue"),
    (BY_IT, "leave it out: the time limit is each run's", "time"),
    ("is set by steptime: use the option `gpus` instead", "follows from each run's gpus", "nodes", "ntasks"),
    ("is set by steptime: use the option `gpus` instead", "write gpu_option: gpus", "gpus"),
    (
        "is set by steptime: use the option `gpus_per_node` instead",
        "write gpu_option: gpus-per-node",
        "gpus-per-node",
    ),
    (
        *("is set by steptime: use the option `gpus_per_node` instead", "write gpus_per_node"),
        *("gpus-per-task", "ntasks-per-node"),
    ),
    (
        *("is set by steptime: use the option `gpus_per_node` instead", "follows from each run's gpus"),
        # With these fewer ranks or GPUs would fit on a node than the plan puts there, so no node would do.
        *("gpus-per-socket", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket"),
    ),
    ("is set by steptime: use the option `gres` instead", PASSES, "gres"),
    (PASSES, PASSES, "partition", "account", "nodelist", "exclude", "reservation", "segment"),
    (PASSES, "give it to a run, in additional_slurm_params", "begin", "deadline", "dependency"),
    (
        *(PASSES, PASSES),
        *("acctg-freq", "bb", "comment", "constraint", "contiguous", "core-spec", "cores-per-socket"),
        *("cpu-freq", "cpus-per-gpu", "cpus-per-task", "delay-boot", "distribution", "exclusive", "extra"),
        *("extra-node-info", "gpu-bind", "gpu-freq", "gres-flags", "hint", "licenses", "mail-type"),
        *("mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network"),
        *("nice", "oversubscribe", "power", "prefer", "profile", "propagate", "qos", "reboot"),
        *("signal", "sockets-per-node", "spread-job", "switches", "thread-spec", "threads-per-core", "tmp"),
        *("tres-bind", "tres-per-task", "use-min-nodes", "wait-all-nodes", "wckey"),
    ),
    # A run cannot choose these; a site may have its reasons.
    (UNKNOWN, PASSES, "bbf", "nodefile"),  # files of the login node; bb and nodelist say the same in a line
    (UNKNOWN, PASSES, "container"),  # an image that is not checked against permitted_images
    (UNKNOWN, PASSES, "ignore-pbs"),  # the script has no PBS lines
    (UNKNOWN, PASSES, "overcommit"),  # ranks would share processors: their times mean nothing
    (UNKNOWN, PASSES, "quiet", "verbose"),  # nobody reads what sbatch prints
)


def of_help():
    names = re.findall(r"^ +(?:-\w,? +)?--([a-z-]+)", HELP.read_text(), re.MULTILINE)
    return set(names)


def of_a_run(option):
    """Return why a run cannot ask for an option, or an empty text if it can."""
    try:
        taken = SlurmOptions.of({"additional_slurm_params": option}).as_given
    except UserError as error:
        return str(error)
    return "" if taken == (f"--{option}",) else f"became {taken}"


def of_a_file(option):
    """Return why a cluster's file cannot set an option for every job, or an empty text if it can."""
    try:
        check_of_every_job(f"--{option}")
    except UserError as error:
        return str(error)
    return ""


def test_every_option_of_sbatch_was_thought_of_once():
    named = [option for _, _, *options in WHAT_BECOMES for option in options]
    assert sorted(named) == sorted(of_help() | set(NOT_IN_HELP))


def test_what_becomes_of_every_option():
    wrong = []
    for of_runs, of_files, *options in WHAT_BECOMES:
        for option in options:
            for given in (f"{option}=1", *([option] if option not in SlurmOptions.model_fields else ())):
                for expected, said in ((of_runs, of_a_run(given)), (of_files, of_a_file(given))):
                    if expected not in said or (said and not expected):
                        wrong.append(f"{given}: expected {expected!r}, and it said {said!r}")
    assert not wrong, "\n".join(wrong)


def test_no_shortened_name_gets_past_a_list():
    """sbatch accepts `--job-na` as `--job-name`."""
    whole = {option: of_files for _, of_files, *options in WHAT_BECOMES for option in options}
    passed = []
    for option, of_files in whole.items():
        for length in range(1, len(option)):
            short = option[:length]
            if short in whole:
                continue
            if UNKNOWN not in of_a_run(f"{short}=1"):
                passed.append(f"{short} in a run")
            if of_files and "cannot be set for every job" not in of_a_file(f"{short}=1"):
                passed.append(f"{short} in a file")
    assert not passed, passed


LONG = "a" * 2000
FORMS = (
    # a request, additional_slurm_params, and the options that sbatch gets or the reason why not
    ({}, None, ()),
    ({}, " ; ;", ()),
    ({}, "exclusive", ("--exclusive",)),
    ({}, " qos=a ;constraint=a&b; ", ("--qos=a", "--constraint=a&b")),
    ({}, "comment=a=b", ("--comment=a=b",)),
    ({}, f"comment={LONG}", (f"--comment={LONG}",)),
    ({}, f"comment={LONG}a", "the value 'aaa"),
    ({}, "comment=", "the value '' of comment cannot be given: use at least one character"),
    ({}, "comment=$(x)", "the value '$(x)' of comment"),
    ({}, "comment=a\n#SBATCH --uid=0", "of comment cannot be given"),
    ({}, "contiguous;contiguous", "`additional_slurm_params` has 'contiguous' twice"),
    ({}, "Qos=1", "'Qos=1' is not of the form option=value"),
    # These would change a job's image, its mounts or its environment.
    *(({}, f"container-{name}=x", UNKNOWN) for name in ("image", "mounts", "env", "name", "remap-root")),
    ({}, "bind=/etc", UNKNOWN),
    ({}, "partition=a", ("--partition=a",)),
    ({}, "partition", "'partition' needs a value, as in partition="),
    ({}, "segment=12", ("--segment=12",)),
    ({}, "segment=0", "`segment` '0' cannot be given to Slurm: write a number of nodes"),
    ({"segment": 3}, None, ("--segment=3",)),
    ({"segment": 3}, "segment=3", "`segment` is also in `additional_slurm_params`: keep one of the two"),
    ({"account": "a"}, "reboot;partition=b", ("--partition=b", "--account=a", "--reboot")),
    ({"partition": f"{LONG}a"}, None, "`partition` 'aaa"),
    ({"partition": "a,b.c+d-e"}, None, ("--partition=a,b.c+d-e",)),
    ({"reservation": "a"}, None, ("--reservation=a",)),
    *(
        ({name: value}, None, f"`{name}` '{value}' cannot be given to Slurm: write a name of letters")
        for name in ("partition", "account", "reservation")
        for value in ("", "a b", "-a", "a,", "a$b", "ä")
    ),
    *(
        ({name: value}, None, (f"--{name}={value}",))
        for name in ("nodelist", "exclude")
        for value in ("n1", "n1,n2", "node[001-016,020]", "r[1-2]n[1,3],login-1.site")
    ),
    *(
        ({name: value}, None, f"`{name}` '{value}' cannot be given to Slurm: write nodes as in")
        for name in ("nodelist", "exclude")
        for value in ("", "./n", "/n", "n1,", "n[1", "n[a]", "n[1-]", "n1 n2")
    ),
    ({"gpus_per_node": 4, "gres": False}, None, ()),  # these need the plan
)


def test_the_form_of_what_a_run_asks_for():
    wrong = []
    for options, additional, expected in FORMS:
        try:
            became = SlurmOptions.of({**options, "additional_slurm_params": additional}).as_given
        except UserError as error:
            became = str(error)
        good = (
            expected in became
            if isinstance(expected, str) and isinstance(became, str)
            else expected == became
        )
        if not good:
            wrong.append(f"{options} {additional!r}: expected {expected!r}, and it became {became!r}")
    assert not wrong, "\n".join(wrong)


def test_a_files_option_has_a_form():
    for option in ("--qos=a", "--exclusive", "--mail-user=a@b", "--uenv=prgenv:default", "--comment=a;b"):
        check_of_every_job(option)
    for option in ("qos=a", "-q=a", "--qos=", "--qos=a b", "--qos=$a", "--qos='a'", "--qos=a\n", "--", "--Q"):
        with pytest.raises(UserError, match="is malformed: write --option or --option=value"):
            check_of_every_job(option)
