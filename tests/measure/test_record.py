"""The record of a run: its contents and their sources."""

import asyncio
import json

import pytest

from steptime.errors import UserError
from steptime.measure.record import format_record, make_record, with_script
from steptime.recipes.request import PlanRequest
from steptime.store.run_models import Submission
from steptime.store.run_records import RunRecord, measured_result, parse_record


class Files:
    """A stand-in for a cluster that has files."""

    def __init__(self, files):
        self.files = files

    async def read(self, path, offset=0, limit=1 << 20):
        return self.files.get(path, b"")[offset : offset + min(limit, 10)]


def record_of(result, **replaced):
    parts = {name: replaced.pop(name) for name in Submission.model_fields if name in replaced}
    ran = {"submitted": result.submitted.model_copy(update=parts), "status": result.status, "log": result.log}
    return json.loads(make_record(**{**ran, **replaced}))


def test_a_record_has_all_that_was_planned_staged_and_run(make_result):
    result = make_result(environment={"NCCL_DEBUG": "INFO"})

    request = PlanRequest(workload="llama3.1", environment={"PLACE": "Zürich"})
    whole = record_of(result, attempt=2, request=request)
    record = RunRecord.model_validate(whole)

    assert (record.run, record.job, record.status) == (result.run, result.job, result.status)
    assert (record.attempt, record.request) == (2, request)
    assert "Zürich" in format_record(whole), "as people read it"
    assert record.provenance == result.submitted.provenance
    assert record.provenance.options["gpus"] == "2"
    assert record.provenance.environment["OMP_NUM_THREADS"] == "1"
    assert record.versions == {
        "nemo": "2.7.3",
        "megatron_core": "0.15.3",
        "torch": "2.13.0",
        "python": "3.11.7",
    }
    assert record.nodes == ("localhost",)
    assert record.earlier_attempts == ()


def test_a_record_has_how_the_ranks_were_started_and_what_the_nodes_told(make_result):
    result = make_result()
    launch = {"numa_bound_ranks": 2, "vboost": False}
    parsed = {"refused": [], "nodes": [{"node": "n1", "faults": [], "matmul_tflops": 650.5}]}
    log = result.log.model_copy(
        update={"started": {**(result.log.started or {}), "launch": launch}, "node_check": parsed}
    )

    record = record_of(result, log=log)

    assert (record["launch"], record["node_check"]) == (launch, parsed)
    without = record_of(result)
    assert (without["launch"], without["node_check"]) == ({}, None)
    del without["launch"], without["node_check"]  # as in a record from before these fields
    assert RunRecord.model_validate(without).node_check is None


def test_a_record_has_the_script_as_it_lies_in_the_jobs_folder(make_result):
    submitted = make_result().submitted
    cluster = Files({f"{submitted.job.directory}/job.sh": b"#!/bin/bash\necho \xff\n"})
    with_it = asyncio.run(with_script(cluster, submitted))
    assert with_it.provenance.script == "#!/bin/bash\necho \ufffd\n"
    assert (
        with_it.provenance.model_copy(update={"script": submitted.provenance.script}) == submitted.provenance
    )


def test_a_damaged_record_is_parsed_as_none(make_result):
    result = make_result()
    parsed = parse_record(result.record)
    assert parsed is not None
    assert (parsed.job, parsed.nodes) == (result.job, ("localhost",))
    assert [parse_record(changed) for changed in ("{}", "no JSON")] == [None, None]
    with pytest.raises(UserError, match=rf"cannot read the record of the run with the log {result.log.path}"):
        measured_result("{}", {}, None, {"path": result.log.path})
