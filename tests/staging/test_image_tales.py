"""What importing and unpacking an image print, ask of enroot and write, in each state of files and registry.

The tales are kept in tests/golden/staging. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/staging/test_image_tales.py
"""

import json
import os
import re
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from kept import assert_kept, masked

from steptime.process_identity import boot_id
from steptime.staging import import_image, make_once, unpack_image
from steptime.staging.make_once import ABANDONED_AFTER_S

IMAGE, DIGEST = "nvcr.io/nvidia/nemo:25.04", f"sha256:{'d' * 64}"
OF_ENROOT, OF_APPTAINER = "docker://nvcr.io#nvidia/nemo:25.04", "docker://nvcr.io/nvidia/nemo:25.04"
MASKED = {r"\b[0-9a-f]{64}\b": "SHA256", r"\.[0-9a-f-]{36}\.[0-9a-f]{32}\.part": ".PART"}


def squashfs(used, size, magic=b"hsqs"):
    """Return a file of `size` bytes whose header names `used` bytes."""
    return (struct.pack("<4s36xQ", magic, used) + b"\0" * size)[:size]


WHOLE = squashfs(300, 300)


class Site:
    """A cluster's folder of images, and programs that answer as a test says."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.asked = []
        self.answers = {}
        self.made = WHOLE
        monkeypatch.setattr("subprocess.run", self.run)
        monkeypatch.setattr("shutil.which", lambda program: None if program in self.answers else program)
        monkeypatch.setattr("platform.node", lambda: "login1")
        monkeypatch.setattr(make_once, "_run", lambda lock, argv: self.make(argv))
        for module in (import_image, unpack_image):
            monkeypatch.setattr(module, "exit_on_sigterm", lambda: None)
        monkeypatch.setattr("time.monotonic", iter(range(0, 10**6, 90)).__next__)

    def run(self, argv, **_):
        self.asked.append(f"$ {' '.join(argv)}")
        code, out, err = self.answers.get(" ".join(argv[:2]), (0, "", ""))
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    def make(self, argv):
        self.asked.append(f"$ {' '.join(argv)}")
        part = next(Path(word) for word in argv if word.endswith(".part"))
        if argv[0] == "unsquashfs":
            part.mkdir()
        elif self.made is not None:
            part.write_bytes(self.made)
        code, out, _ = self.answers.get(f"{argv[0]} make", (0, "", ""))
        return code, out


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path / "images", monkeypatch)


def files(folder):
    return sorted(
        f"{path.relative_to(folder)}, {path.stat().st_size} bytes"
        if path.is_file()
        else f"{path.relative_to(folder)}/"
        for path in folder.rglob("*")
        if not path.name.endswith((".lock", ".json"))
    )


def test_how_an_image_is_imported_and_looked_for(site, monkeypatch, capsys):
    sif, sqsh = site.folder / "nemo.sif", site.folder / "nemo.sqsh"
    known = {"enroot version": (0, "4.1.2\nmore\n", ""), "enroot digest": (0, f"{DIGEST}\n", "")}

    def record(**changed):
        def write():
            import_image.main()
            fields = json.loads((site.folder / "nemo.sqsh.json").read_text()) | changed
            (site.folder / "nemo.sqsh.json").write_text(json.dumps(fields))
            capsys.readouterr(), site.asked.clear()

        return write

    def there(content):
        return lambda: sqsh.write_bytes(content) and None

    def rewritten(content):
        def write():
            record()()
            sqsh.write_bytes(content)
            os.utime(sqsh, ns=(10**18, 10**18))

        return write

    enroot = [str(sqsh), IMAGE, "enroot", OF_ENROOT]
    apptainer = [str(sif), IMAGE, "apptainer", OF_APPTAINER]
    by_digest = [str(sqsh), IMAGE, "enroot", f"{OF_ENROOT}@{DIGEST}"]
    failed = {what: {**known, "enroot make": (1, text, "")} for what, text in FAILURES.items()}
    cases = {
        "by enroot 4": (enroot, known, WHOLE, None),
        "by an enroot that knows no digest": (enroot, {"enroot digest": (1, f"{DIGEST}\n", "")}, WHOLE, None),
        "by an enroot that prints another digest": (
            enroot,
            {"enroot digest": (0, "sha256:1\n", "")},
            WHOLE,
            None,
        ),
        "by its digest": (by_digest, known, WHOLE, None),
        "by apptainer": (apptainer, {"apptainer version": (0, "apptainer 1.3", "")}, b"SIF", None),
        "without the program": (enroot, {"enroot": (0, "", "")}, WHOLE, None),
        "nothing comes": (enroot, known, None, None),
        "an empty file comes": (apptainer, known, b"", None),
        "a byte lacks": (enroot, known, squashfs(301, 300), None),
        "a byte more than are used": (enroot, known, squashfs(299, 300), None),
        "the header alone": (enroot, known, squashfs(48, 48), None),
        "less than the header": (enroot, known, squashfs(47, 47), None),
        "none used": (enroot, known, squashfs(0, 300), None),
        "no squashfs": (enroot, known, squashfs(300, 300, b"none"), None),
        "is there, without a record": (enroot, known, WHOLE, there(WHOLE)),
        "is there in half, without a record": (enroot, known, WHOLE, there(WHOLE[:299])),
        "is there": (enroot, known, WHOLE, record()),
        "is there, of another image": (enroot, known, WHOLE, record(image="nemo:1")),
        "is there, of another source": (enroot, known, WHOLE, record(source="docker://1")),
        "is there, touched": (enroot, known, WHOLE, rewritten(WHOLE)),
        "is there, changed": (enroot, known, WHOLE, rewritten(WHOLE[:-1] + b"1")),
        "is there, longer": (enroot, known, WHOLE, rewritten(WHOLE + b"1")),
        **{f"fails: {what}": (enroot, answers, None, None) for what, answers in failed.items()},
        "look: is there": (["--look", *enroot], known, None, there(b"")),
        "look: its registry has it": (["--look", *enroot], known, None, None),
        "look: refused": (["--look", *enroot], {"enroot digest": (1, "", "401 Unauthorized")}, None, None),
        "look: nobody knows": (["--look", *apptainer], {}, None, None),
        "look: without the program": (["--look", *apptainer], {"apptainer": (0, "", "")}, None, None),
    }
    told = []
    for what, (arguments, answers, made, before) in cases.items():
        for path in [*site.folder.glob("*")] if site.folder.exists() else []:
            path.unlink()
        site.folder.mkdir(exist_ok=True)
        monkeypatch.setattr(sys, "argv", ["import_image.py", *arguments])
        site.answers, site.made = known, WHOLE
        if before is not None:
            before()
        site.answers, site.made = answers, made
        site.asked.clear()
        code = import_image.main()
        told += [f"== {what}", *site.asked, capsys.readouterr().out.rstrip(), f"exit code {code}"]
        told += files(site.folder)
        for kept in site.folder.glob("*.json"):
            fields = json.loads(kept.read_text())
            target = kept.with_suffix("")
            assert fields.pop("mtime_ns") == target.stat().st_mtime_ns
            assert fields.pop("imported_at") == pytest.approx(time.time(), abs=600)
            told.append(f"recorded {fields}")
    assert_kept(
        "staging/import.txt",
        masked("\n".join(told) + "\n", {re.escape(str(site.folder)): "/images", **MASKED}),
    )


FAILURES = {
    "a full disk": "No space left on device",
    "a quota": "write: Disk quota exceeded",
    "half written": "Wrote only 5 of 10 bytes",
    "no login": "error: 401 Unauthorized",
    "not allowed": "error: 403 Forbidden",
    "no such image": "404 Not Found",
    "an unknown version": "MANIFEST UNKNOWN",
    "no network": "curl: (6) Could not resolve host: nvcr.io",
    "a slow network": "dial tcp: i/o timeout",
    "no jq": "Command not found: jq",
    "something else": "405 What",
}


def test_how_an_image_is_unpacked(site, monkeypatch, capsys, tmp_path):
    folder, file = site.folder / "unpacked", tmp_path / "passwd"
    file.write_text("root")
    mounts = ["/data/of/all", str(file), "/../etc/../opt", "/data"]
    told = []
    for what, answers in {
        "the first time": {},
        "again": {},
        "without unsquashfs": {"unsquashfs": (0, "", "")},
        "on a full disk": {"unsquashfs make": (1, "No space left on device", "")},
        "over the quota": {"unsquashfs make": (1, "Disk quota exceeded", "")},
        "of a broken image": {"unsquashfs make": (3, "no superblock", "")},
    }.items():
        if answers and folder.exists():
            folder.rename(tmp_path / "away")
        site.answers = answers
        site.asked.clear()
        monkeypatch.setattr(sys, "argv", ["unpack_image.py", "/image.sqsh", str(folder), *mounts])
        code = unpack_image.main()
        told += [
            f"== {what}",
            *site.asked,
            capsys.readouterr().out.rstrip(),
            f"exit code {code}",
            *files(site.folder),
        ]
    text = masked(
        "\n".join(told) + "\n",
        {re.escape(str(site.folder)): "/images", re.escape(str(tmp_path)[1:]): "tmp", **MASKED},
    )
    assert_kept("staging/unpack.txt", masked(text, {r"(?m)^unpacked/(?!data|opt|etc|.*passwd).*\n": ""}))


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("boot", ["this", "another"])
@pytest.mark.parametrize("older_by_s", [-60, 60])
def test_what_a_killed_process_left_goes_when_nobody_can_be_making_it(
    tmp_path, monkeypatch, locks, boot, older_by_s
):
    """At once if this host holds the lock and has begun it; else when it was not written to for long."""
    target = tmp_path / "venv"
    part = target.with_name(f".venv.{boot_id() if boot == 'this' else 'boot'}.{'0' * 32}.part")
    others = [
        tmp_path / f".other.{boot_id()}.{'0' * 32}.part",
        tmp_path / f".venv.{boot_id()}.part",
        tmp_path / ".venv.a.b.c.part",
    ]
    for path in (part, *others):
        path.touch()
        at = time.time() - ABANDONED_AFTER_S - older_by_s
        os.utime(path, (at, at))
    if not locks:
        monkeypatch.setattr(make_once, "_lock", lambda *_: False)
    make_once.make_once(target, "build of", target.exists, lambda path, run: path.touch())
    assert part.exists() is not (older_by_s > 0 or (locks and boot == "this"))
    assert all(path.exists() for path in others)
