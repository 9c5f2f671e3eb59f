"""Which sign of failure comes first: every pair of weights in both orders, and every sentence about places.

The tables are kept in tests/golden/logs. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/logs/test_failure_timeline.py
"""

import gzip

import pytest
from kept import assert_kept

from steptime.logs import failure_causes, reader
from steptime.logs.failure_timeline import ERROR_LINE, FailureSign, Timeline, Weight, earlier_problems

STEP, NEXT_LOG = "step", "next log"


def timeline(parts):
    """Return a timeline with these signs, 2,000 bytes apart unless they say where they are."""
    made = Timeline()
    for number, part in enumerate(parts, 1):
        if part == STEP:
            made.add_step()
        elif part == NEXT_LOG:
            made.next_log()
        elif isinstance(part, FailureSign):
            made.add(part if part.at else part._replace(at=2000 * number))
    return made


def sign(weight, **fields):
    kind = fields.pop("kind", weight.name.lower())
    return FailureSign(kind, fields.pop("sentence", kind), weight, **fields)


def told(parts, *, complete=False):
    """Return each problem: fatal ones with `!`."""
    problems = timeline(parts).problems(complete=complete)
    return [f"{problem.message}{'!' if problem.fatal else ''}" for problem, _ in problems]


def test_each_pair_of_signs_has_its_order():
    lines = []
    for first in Weight:
        for second in Weight:
            one, two = sign(first, kind="1"), sign(second, kind="2")
            vague = one._replace(is_vague=True)
            ways = {
                "at the end": [STEP, one, two],
                "before any step": [one, two],
                "a step between": [STEP, one, STEP, two],
                "two steps between": [STEP, one, STEP, STEP, two],
                "one step behind": [one, two, STEP],
                "two steps behind": [one, two, STEP, STEP],
                "in two logs": [one, NEXT_LOG, two],
                "the first is vague": [STEP, vague, two],
                "vague, in two logs": [vague, NEXT_LOG, two],
            }
            outcomes = {}
            for way, parts in ways.items():
                outcomes.setdefault(", ".join(told(parts)) or "nothing", []).append(way)
            complete = ", ".join(told([STEP, one, two], complete=True)) or "nothing"
            outcomes.setdefault(complete, []).append("complete")
            lines.append(f"1 {first.name.lower()}, 2 {second.name.lower()}")
            lines += [f"    {outcome}: {'; '.join(ways)}" for outcome, ways in outcomes.items()]
    assert_kept("logs/pairs-of-signs.txt", "\n".join(lines) + "\n")


def test_each_sentence_about_signs_and_their_places():
    happened, ended = Weight.HAPPENED, Weight.ENDED
    of = {
        rank: sign(happened, kind="lost", places={"rank": str(rank), "node": f"n{rank // 8}"})
        for rank in range(64)
    }
    on_gpu = sign(happened, kind="xid", places={"gpu": "5"})
    task = sign(happened, sentence="srun: task {task} on {node} ended", places={"task": "3", "node": "n1"})
    killed = sign(Weight.FOLLOWED, kind="killed", is_killed=True, places={"node": "n4"})
    memory = sign(Weight.EXPLAINS, kind="memory")
    error = sign(Weight.SEVERE, kind=ERROR_LINE, sentence="quoted", at=5000)
    timed_out = sign(happened, kind=ERROR_LINE, sentence="timed out", is_vague=True)
    exited = sign(Weight.EXITED)
    complained = sign(Weight.COMPLAINED, kind=ERROR_LINE, sentence="complained")
    spoils = sign(happened, kind="spoils", spoils=True)
    cases = {
        "one rank": [of[2]],
        "the same line twice": [of[2], of[2]],
        "the same line three times": [of[2], of[2], of[2]],
        "two ranks": [of[2], of[5]],
        "ranks of two nodes": [of[2], of[9]],
        "40 places and more": [of[rank] for rank in range(42)],
        "a rank whose node another line names": [of[9]._replace(places={"rank": "9"}), of[9]],
        "a rank of an unknown node": [of[9]._replace(places={"rank": "9"})],
        "a rank and its GPU": [on_gpu._replace(places={"gpu": "5", "rank": "2"})],
        "a GPU": [on_gpu],
        "a GPU of a node": [on_gpu._replace(places={"gpu": "5", "node": "n1"})],
        "a GPU that the sentence names": [on_gpu._replace(sentence="Xid on GPU {gpu}")],
        "places in the sentence": [task],
        "places that the line lacks": [task._replace(places={})],
        "a rank beside a named task": [task._replace(places={"task": "3", "rank": "2", "node": "n1"})],
        "who was killed": [memory, killed],
        "who was killed, known already": [memory._replace(nodes="n7"), killed],
        "who was killed, of another place": [memory._replace(places={"node": "n5"}), killed],
        "not killed": [memory, killed._replace(is_killed=False)],
        "a sign that spoils the numbers": [spoils, STEP, STEP],
        "one that does not": [spoils._replace(spoils=False), STEP, STEP],
        "survived, and again": [of[2], STEP, STEP, of[2]],
        "survived, and another form": [
            sign(happened, kind="a", form=2, sentence="a 2"),
            *(STEP, STEP),
            sign(happened, kind="a", form=1, sentence="a 1"),
        ],
        "the lowest form": [sign(happened, kind="a", form=form, sentence=f"a {form}") for form in (2, 1, 3)],
        "the lowest form, after the end": [
            sign(happened, kind="a", form=2, sentence="a 2"),
            sign(ended),
            sign(happened, kind="a", form=1, sentence="a 1"),
        ],
        "of two ends the lowest form": [
            sign(ended, kind="a", form=form, sentence=f"a {form}") for form in (2, 1)
        ],
        "the first quoted line of a passage": [error, error._replace(sentence="later", at=6000)],
        "the next passage": [error, error._replace(sentence="later", at=6001)],
        "the next log": [error, NEXT_LOG, error._replace(sentence="later", at=5001)],
        "the next passage after a step": [STEP, error, error._replace(sentence="later", at=6001)],
        "a quoted line that one step followed": [error, STEP, error._replace(sentence="later", at=9000)],
        "a quoted line that was survived": [error, STEP, STEP, error._replace(sentence="later", at=9000)],
        "a quoted line after the end": [sign(ended), error._replace(at=9000)],
        "a quoted line before the end": [error._replace(at=1), sign(ended)],
        "a complaint before an exit": [complained, exited],
        "a complaint beside an error line": [complained, error, exited],
        "a complaint alone": [complained],
        "a complaint before what follows": [complained, sign(Weight.FOLLOWED), exited],
        "a wait that timed out": [timed_out, of[2]],
        "a warning before a vague sign": [sign(Weight.WARNED), of[2]._replace(is_vague=True)],
        "an exit before the end": [exited, sign(ended), sign(Weight.FOLLOWED), error._replace(at=1)],
        "nothing to say": [sign(happened, sentence="")],
    }
    lines = []
    for what, parts in cases.items():
        lines.append(f"== {what}")
        found = timeline(parts).problems(complete=False)
        shown = [
            f"{problem.kind}{'!' if problem.fatal else ''}: {problem.message} {problem.nodes}"
            for problem, _ in found
        ]
        lines += [text.rstrip() for text in shown] or ["nothing"]
        if (complete := told(parts, complete=True)) != told(parts):
            lines.append(f"of a complete training: {', '.join(complete) or 'nothing'}")
    earlier = [timeline([of[2], task]), timeline([of[2], on_gpu, error])]
    lines += [
        "== earlier attempts",
        *(f"{problem.message} {problem.fatal}" for problem in earlier_problems(earlier)),
    ]
    at_once = [weight.name.lower() for weight in Weight if sign(weight).is_told_at_once]
    lines += ["== told at once", ", ".join(at_once), str(sign(happened, sentence="").is_told_at_once)]
    lines += ["== by itself", repr(of[2].problem())]
    assert_kept("logs/signs-and-places.txt", "\n".join(lines) + "\n")


def test_an_attempt_keeps_a_thousand_signs():
    made = timeline(sign(Weight.HAPPENED, kind=f"kind {number}") for number in range(1001))
    assert [problem.kind for problem, _ in made.problems(complete=False)][-1] == "kind 999"


@pytest.mark.parametrize(
    ("values", "ended_by"),
    [
        *(({"code": "-9"}, "SIGKILL"), ({"code": "137"}, "SIGKILL"), ({"code": "143"}, "SIGTERM")),
        *(({"code": "1"}, None), ({"code": "128"}, None), ({"code": "129"}, "SIGHUP"), ({"code": "0"}, None)),
        *(({"number": "9"}, "SIGKILL"), ({"number": "11"}, "SIGSEGV"), ({"number": "900"}, None)),
        *(
            ({"how": "Killed"}, "SIGKILL"),
            ({"how": "Aborted (core dumped)"}, "SIGABRT"),
            ({"how": "Lost"}, None),
        ),
        ({}, None),
    ],
)
def test_what_ended_a_process_by_its_code_number_or_word(values, ended_by):
    found = failure_causes._ended_by(values)
    assert (found and found.name) == ended_by


def test_a_log_that_unpacks_to_too_much_says_to_how_much(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MOST_LOG_BYTES", 2 << 20)
    for size, refused in ((2 << 20, False), ((2 << 20) + 1, True)):
        (tmp_path / "log.gz").write_bytes(gzip.compress(bytes(size)))
        read = 0
        try:
            for piece in reader.unpack_log(tmp_path / "log.gz"):
                read += len(piece)
            said = ""
        except EOFError as error:
            said = str(error)
        assert said == ("it unpacks to more than 2 MiB, and is not read further" if refused else "")
        assert read <= size
