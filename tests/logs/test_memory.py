"""A log of any size is read in the memory of a small one."""

import json
import os
import subprocess
import sys

import pytest
from logs import line_forms

_READER = """
import json, resource, sys
from steptime.logs.reader import read_log
small = read_log(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
large = read_log(sys.argv[2])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"grown_kib": after - before, "bytes": large.bytes_read, "steps": len(large.steps),
                  "equal": large.steps == small.steps}))
"""


@pytest.mark.long
def test_megabytes_of_tracing_take_no_memory(tmp_path):
    small, large = tmp_path / "log-small.out", tmp_path / "log-large.out"
    small.write_bytes(line_forms.nemo2_log())
    tracing = b"".join(map(line_forms.nccl_trace, range(6200)))
    with large.open("wb") as stream:
        for step in range(50):
            stream.write(tracing)
            stream.write(line_forms.nemo2_log([step]))
    assert large.stat().st_size > 60_000_000
    done = subprocess.run(
        [sys.executable, "-c", _READER, small, large],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    found = json.loads(done.stdout)
    assert found["bytes"] == large.stat().st_size
    assert found["equal"]
    assert found["steps"] == 50
    assert found["grown_kib"] < 20_000
