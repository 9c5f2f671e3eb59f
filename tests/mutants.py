"""Change the code in small ways, one at a time, and see whether the tests notice: `make mutants`.

Each room's tests are collected and run once, in a copy of the checkout. Each mutant is a fork of that process
with what tests share at hand; the code of the changed function is exchanged, and the tests that call it run,
those of the module's own file first, then the fastest. What no fork shows (programs, what tests share,
PostgreSQL, and what stands outside of functions) is seen by a process that imports the changed source. Each
has a pid namespace of its own: a changed condition has ended every process of the machine that it ran on.
"""

import argparse
import functools
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pid_namespace
import pytest
import yaml
from mutations import Mutant, mutants
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
PACKAGE = Path("plugins") / "steptime"
LISTS = Path(__file__).with_name("mutants.yaml")
GOAL = 0.9
QUICK = (
    "not trainer and not end_to_end and not browser and not slurm and not drill and not service and not slow"
)
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".steptime", "build", ".*_cache", ".hypothesis", "node_modules"
)
_OWN_FAULT = 70
_TRACE = -1  # in place of a mutant's index
_COLLECTION = ""  # in place of a test's name
Functions = tuple[dict[types.CodeType, list[types.FunctionType]], list["functools._lru_cache_wrapper[Any]"]]
_BY_SIGNAL = 128
"""Added to its number in the exit code."""


@dataclass(frozen=True)
class Room:
    """What is changed together, and the tests that should notice."""

    tests: Sequence[str]
    sources: Sequence[str] = ()
    by_hand: Sequence[dict[str, Any]] = ()


def main() -> int:
    """Give 0 where every room reaches the goal, 1 where one does not, and 2 where nothing could be said."""
    lists = yaml.safe_load(LISTS.read_text(encoding="utf-8"))
    rooms = {name: Room(**room) for name, room in lists["rooms"].items()}
    rooms["by hand"] = Room((), by_hand=lists["by_hand"])
    told = _options(rooms)
    if not told.list and pid_namespace.run(["true"]):
        _stop(
            "no pid namespace can be had here, and without one changed code could end other processes: "
            "permit user namespaces, or run this as root."
        )
    table = Table("room", "could be changed", "drawn", "killed", "equivalent", "lived", "score", "CPU")
    good = True
    for name in told.room or rooms:
        room = rooms[name]
        changes = kept_mutants(room.by_hand) if room.by_hand else of_room(room)
        changes = [mutant for mutant in changes if told.file in mutant.path]
        drawn = changes
        if told.sample and not room.by_hand and told.sample < len(changes):
            drawn = random.Random(f"{told.seed}:{name}").sample(changes, told.sample)  # noqa: S311
        drawn = sorted(drawn, key=Mutant.place)
        if told.list:
            for mutant in drawn:
                _show(mutant)
            continue
        equivalent = {mutant: reason_of_equivalence(mutant, lists["equivalent"]) for mutant in drawn}
        tried = [mutant for mutant in drawn if not equivalent[mutant]]
        outcomes: Counter[str] = Counter()
        before = _cpu_s()
        for mutant, killer in track(
            outcomes_of(room, tried, told.jobs), name, len(tried), console=Console(stderr=True)
        ):
            outcomes["killed" if killer else "lived"] += 1
            if killer is None:
                _show(mutant)
            elif told.by:
                print(f"{mutant.path}:{mutant.line} {mutant.kind}: {killer}", flush=True)
        if outcomes.total() < len(tried):
            return 2
        killed, lived, same = outcomes["killed"], outcomes["lived"], len(drawn) - len(tried)
        score = killed / max(1, killed + lived)
        good = good and (lived == 0 if room.by_hand else score >= GOAL)
        counts = map(str, (len(changes), len(drawn), killed, same, lived))
        table.add_row(name, *counts, f"{score:.1%}", f"{_cpu_s() - before:.0f} s")
    if not told.list:
        Console().print(table)
    return 0 if good else 1


def _options(rooms: Iterable[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--room", action="append", choices=rooms, help="only these")
    options.add_argument("--sample", type=int, default=100, help="so many of each room (100); 0 for all")
    options.add_argument("--seed", type=int, default=1, help="which ones are drawn (1)")
    options.add_argument("--file", default="", help="only of sources whose path has this in it")
    options.add_argument("--jobs", type=int, default=2, help="so many changes at once (2)")
    options.add_argument("--list", action="store_true", help="print the changes and run nothing")
    options.add_argument("--by", action="store_true", help="print which test noticed each change")
    return options.parse_args()


def _cpu_s() -> float:
    """CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _stop(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(2)


def _show(mutant: Mutant) -> None:
    print(mutant.diff(source_of(mutant.path)), flush=True)


def source_of(path: str) -> str:
    """The source of a module, by its path below the package."""
    return (ROOT / PACKAGE / path).read_text(encoding="utf-8")


def of_room(room: Room) -> list[Mutant]:
    """All changes of a room that Python compiles."""
    package = ROOT / PACKAGE
    paths = sorted(
        {file.relative_to(package).as_posix() for glob in room.sources for file in package.glob(glob)}
    )
    return [mutant for path in paths for mutant in mutants(path, source_of(path)) if compiles(mutant)]


def compiles(mutant: Mutant) -> bool:
    """Whether the changed source is Python."""
    try:
        compile(mutant.mutated(source_of(mutant.path)), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


def kept_mutants(entries: Iterable[dict[str, Any]]) -> list[Mutant]:
    """The changes that somebody wrote by hand: each replaces a text that its module has once."""
    found = []
    for entry in entries:
        source = source_of(entry["path"])
        if source.count(entry["old"]) != 1:
            _stop(f"{LISTS.name}: {entry['path']} does not have {entry['old']!r} once")
        begin = source.index(entry["old"])
        line, end = source.count("\n", 0, begin) + 1, begin + len(entry["old"])
        found.append(Mutant(entry["path"], line, entry["harm"], begin, end, entry["new"]))
    return found


def reason_of_equivalence(mutant: Mutant, entries: Iterable[dict[str, Any]]) -> str | None:
    """Why a change is none to anybody, where somebody has written that down."""
    source = source_of(mutant.path)
    lines = {line[1:].strip() for line in mutant.diff(source).splitlines()[2:] if line.startswith("+")}
    return next(
        (e["why"] for e in entries if mutant.path in _all(e["path"]) and lines & _all(e["becomes"])), None
    )


def _all(listed: str | list[str]) -> set[str]:
    return {listed} if isinstance(listed, str) else {*listed}


def outcomes_of(room: Room, drawn: list[Mutant], at_once: int) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant and what killed it, None where it lives, as they become known."""
    if room.by_hand:
        yield from _one_by_one(room, drawn)
        return
    work = Path(tempfile.mkdtemp(prefix="mutants-"))
    work.chmod(0o755)
    try:
        shutil.copytree(ROOT, work / "warm", ignore=NOT_COPIED, symlinks=True)
        reading, writing = os.pipe()
        warm = os.fork()
        if warm == 0:
            pid_namespace.end_with_parent()
            os.close(reading)
            _in_copy(work / "warm", work / "output")
            told = os.fdopen(writing, "w", buffering=1)
            plugin = Warm(room, drawn, work, at_once, lambda *line: print(json.dumps(line), file=told))
            os._exit(_pytest([*room.tests], plugin))
        os.close(writing)
        with os.fdopen(reading) as lines:
            for index, killer in map(json.loads, lines):
                yield drawn[index], killer
        if os.waitpid(warm, 0)[1]:
            print((work / "output").read_text(errors="replace")[-6000:], file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _one_by_one(room: Room, drawn: list[Mutant]) -> Iterator[tuple[Mutant, str | None]]:
    """Each change by hand, and what killed it of the tests that it names."""
    for mutant, entry in zip(kept_mutants(room.by_hand), room.by_hand, strict=True):
        if mutant not in drawn:
            continue
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copied, failed = Path(folder, "copy"), Path(folder, "failed")
            shutil.copytree(ROOT, copied, ignore=NOT_COPIED, symlinks=True)
            _write(mutant, copied)
            tests = [*entry["tests"], "-m", ""]  # those that are named, whatever their markers
            program = [sys.executable, __file__, "--in", str(copied), str(failed), *tests]
            status = pid_namespace.run(program)
            killer = failed.read_text(encoding="utf-8") if failed.exists() else _signal(status)
            if status and killer is None:
                _stop(f"{' '.join(entry['tests'])}: pytest ended with exit code {status}")
            yield mutant, killer


def _signal(status: int) -> str | None:
    """What ended a process from outside of its tests; None where it ended by itself."""
    if status <= _BY_SIGNAL:
        return None
    number = status - _BY_SIGNAL
    limits = (signal.SIGALRM, signal.SIGXCPU)
    return "the time limit" if number in limits else f"it ended itself by signal {number}"


def _write(mutant: Mutant, copied: Path) -> None:
    changed = copied / PACKAGE / mutant.path
    source = changed.read_text(encoding="utf-8")
    changed.unlink()  # the file may be another copy's, too
    changed.write_text(mutant.mutated(source), encoding="utf-8")


def _in_copy(copied: Path, output: Path) -> None:
    """Go to a copy of the checkout: its code is what is imported from now on, in programs, too."""
    os.chdir(copied)
    path = [str(copied / "plugins"), str(copied)]
    sys.path[:0] = path
    os.environ.update(PYTHONPATH=os.pathsep.join(path), STEPTIME_HOME=str(copied / ".steptime"))
    os.environ["NO_SHORT_CUTS"] = "1"  # else hardly a test would call the reader of workloads
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), standard)


def _pytest(arguments: list[str], *plugins: object) -> int:
    without = ["-p", "no:xdist", "-p", "no:cacheprovider"]
    return int(pytest.main(["-x", "-q", "-s", *without, "-m", QUICK, *arguments], plugins=[*plugins]))


class Warm:
    """A pytest plugin: runs the tests once to see which calls what, and then a fork for each mutant."""

    def __init__(
        self,
        room: Room,
        drawn: list[Mutant],
        work: Path,
        at_once: int,
        tell: Callable[[int, str | None], None],
    ):
        self.room, self.drawn, self.work, self.at_once, self.tell = room, drawn, work, at_once, tell
        self.running: dict[int, int] = {}
        self.failed: Path | None = None
        self.test = _COLLECTION
        self.calls: dict[str, set[str]] = defaultdict(set)
        self.took: Counter[str] = Counter()  # seconds
        self.functions: Functions = {}, []
        self.start_programs: set[str] = set()
        self.pages_of_others = 0
        self._trace()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests, and for each mutant those that call what is changed, in a fork."""
        sys.settrace(None)
        if not self._fork(_TRACE, 3600, lambda: None):
            if os.waitstatus_to_exitcode(os.wait()[1]):
                raise pytest.UsageError("the tests fail before anything is changed, or a change was not made")
            return True
        on_server = [i for i in session.items if "postgresql" in i.nodeid or "postgresql" in _fixtures(i)]
        items = [item for item in session.items if item not in on_server]
        self._trace()
        _run(session, items)
        sys.settrace(None)
        if session.testsfailed:
            os._exit(1)
        signal.alarm(0)
        stores = sys.modules.get("steptime.results.database")
        if stores is not None:
            stores.close_engines()  # SQLite's connections do not outlive a fork
        self._mutants(session, items)
        os._exit(0)

    def _mutants(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        self.functions = functions_by_code()
        gc.freeze()  # a fork that looked through all objects would copy their memory
        again = []
        for index, mutant in enumerate(self.drawn):
            callers = self._callers(items, mutant)
            if not callers:
                again.append(index)
                continue
            limit = 20 + 5 * sum(self.took[item.nodeid] for item in callers)
            if self._fork(index, limit, functools.partial(self._exchange, mutant)):
                session.config._tmp_path_factory._basetemp = None  # type: ignore[attr-defined]
                try:
                    _run(session, callers)
                finally:
                    os._exit(bool(session.testsfailed))
            self._reap(self.at_once - 1, again)
        self._reap(0, again)
        anew = {index: self._tests_anew(self.drawn[index], session.items) for index in sorted(again)}
        for index in (index for index, tests in anew.items() if not tests):
            self.tell(index, None)
        for index, tests in ((index, tests) for index, tests in anew.items() if tests):
            limit = 120 + 5 * sum(self.took.values())
            if self._fork(index, limit, functools.partial(self._anew, index, tests)):
                raise AssertionError("another program should run here")
            self._reap(self.at_once - 1, None)
        self._reap(0, None)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """What the session shares is not made by the first test that uses it."""
        test = self.test
        if fixturedef.scope == "session":
            self.test = fixturedef.argname
        try:
            return (yield)
        finally:
            self.test = test

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test, self.pages_of_others = nodeid, _pages_of_others()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[report.nodeid] += report.duration  # type: ignore[assignment]
        if _pages_of_others() > self.pages_of_others:
            self.start_programs.add(report.nodeid)
        if report.failed and self.failed:
            self.failed.write_text(report.nodeid)

    def _fork(self, index: int, limit_s: float, prepare: Callable[[], None]) -> bool:
        """Start a child, which is True there, has prepared itself and is ended after the limit."""
        child = os.fork()
        if child:
            self.running[child] = index
            return False
        try:
            pid_namespace.enter()
            self._begin(index, limit_s, prepare)
        except Exception:  # else a fault of this program would look like a change that was noticed
            traceback.print_exc()
            os._exit(_OWN_FAULT)
        return True

    def _begin(self, index: int, limit_s: float, prepare: Callable[[], None]) -> None:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(limit_s))
        # pytest-timeout takes the alarm for itself, and its handler does not interrupt a loop within SQLite.
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 1))
        self.failed = self.work / f"{index}.failed"
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = str(
            self.work / f"temporary{index}"
        )
        Path(tempfile.tempdir).mkdir()
        prepare()

    def _trace(self) -> None:
        """Note from now on which function of ours is called by which test."""
        ours = str(Path.cwd() / PACKAGE)

        def called(frame: types.FrameType, _event: str, _argument: object) -> None:
            code = frame.f_code
            if code.co_filename.startswith(ours):
                self.calls[self.test].add(f"{code.co_filename}:{code.co_firstlineno}")

        threading.settrace(called)
        sys.settrace(called)

    def _callers(self, items: list[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        """The tests that call the changed function, those of the module's file first, then the fastest."""
        place, changed = self._place(mutant)
        if place is None or not changed:
            return []
        name = Path(mutant.path).stem
        return sorted(
            (item for item in items if place in self.calls.get(item.nodeid, ())),
            key=lambda item: (f"test_{name}.py" not in item.nodeid, self.took[item.nodeid]),
        )

    def _place(self, mutant: Mutant) -> tuple[str | None, bool]:
        """File and line of the outermost function that is changed, if any, and whether a fork can do it."""
        code, changed = self._changed(mutant)
        if code is None or changed is None:
            return None, False
        # A function takes no code that has other free variables, as where a call of super() is dropped.
        in_fork = code in self.functions[0] and len(code.co_freevars) == len(changed.co_freevars)
        return f"{code.co_filename}:{code.co_firstlineno}", in_fork

    def _tests_anew(self, mutant: Mutant, items: Sequence[pytest.Item]) -> list[str]:
        """The tests that could notice what no fork shows, in the order to run them.

        PostgreSQL is started only for changes of modules that talk to a database.
        """
        place, in_fork = self._place(mutant)
        module = str(Path.cwd() / PACKAGE / mutant.path)
        calling = [name for name in self.took if any(p.startswith(module) for p in self.calls[name])]
        files = {name.partition("::")[0] for name in calling}
        on_server = [item.nodeid for item in items if item.nodeid not in self.took]
        if "sqlalchemy" not in source_of(mutant.path):
            on_server = []
        on_server = [name for name in on_server if name.partition("::")[0] in files]
        if place is None or place in self.calls[_COLLECTION]:
            others = self.took.keys() - set(calling)
        else:
            sharing = {item.nodeid for item in items if any(place in self.calls[f] for f in _fixtures(item))}
            calling = [name for name in calling if place in self.calls[name]]
            if in_fork:
                calling = [name for name in calling if name in self.start_programs]
            others = sharing - set(calling)
        own = f"test_{Path(mutant.path).stem}.py"
        calling.sort(key=lambda name: (own not in name, self.took[name]))
        return [*calling, *sorted(others, key=self.took.__getitem__), *on_server]

    def _changed(self, mutant: Mutant) -> tuple[types.CodeType | None, types.CodeType | None]:
        """The code of the outermost function that is changed, before and after."""
        path = Path.cwd() / PACKAGE / mutant.path
        source = path.read_text(encoding="utf-8")
        return changed_functions(str(path), source, mutant.mutated(source))

    def _exchange(self, mutant: Mutant) -> None:
        """Put the changed function's code in the place of the old one."""
        old, new = self._changed(mutant)
        assert old is not None
        assert new is not None
        functions, caches = self.functions
        for function in functions[old]:
            function.__code__ = new
        for cache in caches:
            cache.cache_clear()

    def _anew(self, index: int, tests: Sequence[str]) -> None:
        """Run these tests in another program, in that order."""
        copied, failed = self.work / f"copy{index}", self.work / f"{index}.failed"
        shutil.copytree(self.work / "warm", copied, ignore=NOT_COPIED, symlinks=True, copy_function=os.link)
        _write(self.drawn[index], copied)
        failed.with_suffix(".tests").write_text(json.dumps(tests), encoding="utf-8")
        files = dict.fromkeys(name.partition("::")[0] for name in tests)
        program = [sys.executable, __file__, "--in", str(copied), str(failed), *files]
        os.execv(program[0], program)  # noqa: S606

    def _reap(self, left: int, again: list[int] | None) -> None:
        """Wait until so many run; what lives is tried again, where there is another way."""
        while len(self.running) > left:
            child, status = os.wait()
            if child not in self.running:  # a test has left it
                continue
            index, code = self.running.pop(child), os.waitstatus_to_exitcode(status)
            for folder in ("temporary", "copy"):
                shutil.rmtree(self.work / f"{folder}{index}", ignore_errors=True)
            if code == _OWN_FAULT or code < 0:  # whoever ends what only waits is no mutant
                raise pytest.UsageError(f"could not make {self.drawn[index]}")
            failed = self.work / f"{index}.failed"
            killer = failed.read_text(encoding="utf-8") if failed.exists() else _signal(code)
            if code and killer is None and again is None:
                killer = "the tests do not start"
            failed.unlink(missing_ok=True)
            if killer is None and again is not None:
                again.append(index)
            else:
                self.tell(index, killer)


def _fixtures(item: pytest.Item) -> list[str]:
    """What it uses, by name."""
    assert isinstance(item, pytest.Function), f"{item.nodeid} is no function"
    return item.fixturenames


def _run(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Run tests until one fails; what the session shares stays."""
    session._setupstate.teardown_exact(items[0])
    others = [item for item in session.items if item is not items[0]]
    for item, following in zip(items, [*items[1:], others[0]], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return


def _pages_of_others() -> int:
    """Memory that ended children have touched: it grows with each that is waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def functions_by_code() -> Functions:
    """All functions by their code, and our caches; what is frozen for the garbage collector, too."""
    gc.unfreeze()  # tests/conftest.py has frozen what was imported, and what is frozen is not listed
    functions: dict[types.CodeType, list[types.FunctionType]] = defaultdict(list)
    caches = []
    for found in gc.get_objects():
        # type(…) is, as isinstance(…) would wake what is imported lazily
        if type(found) is types.FunctionType:
            functions[found.__code__].append(found)
        elif type(found) is functools._lru_cache_wrapper and found.__module__.startswith("steptime"):
            caches.append(found)
    return functions, caches


def changed_functions(
    path: str, source: str, changed: str
) -> tuple[types.CodeType | None, types.CodeType | None]:
    """The code of the outermost function that is changed, before and after; None where none is."""
    before, after = (list(_functions(compile(text, path, "exec"))) for text in (source, changed))
    pairs = zip(before, after, strict=True) if len(before) == len(after) else ()
    return next(
        ((old, new) for old, new in pairs if _without_places(old) != _without_places(new)), (None, None)
    )


def _without_places(code: types.CodeType) -> types.CodeType:
    """The code alone: where it stands in the source changes with what is around it."""
    constants = (_without_places(one) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=tuple(constants))


def _functions(code: types.CodeType) -> Iterator[types.CodeType]:
    """The outermost functions of a module and of its classes, in the order of their places."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            is_class = not constant.co_flags & 0x2  # CO_NEWLOCALS: of functions alone
            yield from _functions(constant) if is_class else [constant]


class Reported:
    """A pytest plugin: writes the name of the test that failed to a file.

    A file beside it may name the tests to run, in their order.
    """

    def __init__(self, failed: Path):
        self.failed = failed

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are named."""
        named = self.failed.with_suffix(".tests")
        if named.exists():
            known = {item.nodeid: item for item in items}
            items[:] = [known[name] for name in json.loads(named.read_text()) if name in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each test says how it went."""
        if report.failed:
            self.failed.write_text(report.nodeid)


def _in_process_of_its_own(copied: str, failed: str, *tests: str) -> int:
    _in_copy(Path(copied), Path(failed).with_suffix(".output"))
    return _pytest([*dict.fromkeys(tests)], Reported(Path(failed)))


if __name__ == "__main__":
    sys.exit(_in_process_of_its_own(*sys.argv[2:]) if sys.argv[1:2] == ["--in"] else main())
