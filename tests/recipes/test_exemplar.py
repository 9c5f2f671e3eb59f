"""The workloads of NVIDIA's exemplar releases, compared with what their own launch scripts submit.

The submissions are recorded in tests/data/exemplar (recorders/launches.py), by tag.
"""

from pathlib import Path

import pytest
from launch_records import arguments_by_name, of_kind, read_launches
from printed_tables import imported
from slurm_jobs import asked_of_slurm, numactl_of, run_of_row

from steptime.recipes.bridge_launch import bridge_command
from steptime.recipes.models import NamedRecipe
from steptime.recipes.sweep_planning import plan_sweep
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.recipes.workloads import list_workloads, load_workload

RECORDED = read_launches("exemplar/v26.08.00.json")
OURS = {"--save_config_filepath": ["ConfigContainer.yaml"]}
"""An argument of ours: upstream's default is a folder of its launcher."""


def key_of(row):
    return f"{row.size} {row.gpu_type} {row.dtype} {row.gpus}"


def test_what_is_recorded_is_shipped():
    assert {name for name in list_workloads() if imported(name)} == RECORDED.keys()


@pytest.mark.parametrize("name", [name for name in list_workloads() if imported(name)])
def test_each_run_is_started_and_asked_for_as_upstreams(name, tmp_path):
    """Arguments, variables, Slurm's options, binding, time limit, image and batch are upstream's."""
    workload = load_workload(name)
    ours = {key_of(row): row for row, _ in workload.recipes()}
    theirs = RECORDED[name]
    assert ours.keys() == theirs.keys()
    bound = set()
    for key, upstream in theirs.items():
        row = ours[key]
        assert isinstance(row.model, NamedRecipe)
        run, requested = run_of_row(row), asked_of_slurm(row)
        script, *arguments = bridge_command(run)
        assert arguments_by_name(arguments) == of_kind("argument", upstream) | OURS, key
        assert run.performance.environment == of_kind("variable", upstream), key
        slurm = of_kind("slurm", upstream)
        assert {*slurm.pop("srun_args")} <= requested.srun, key
        assert (requested.sbatch, requested.further) == (slurm, {"ntasks", "gres"}), key
        assert requested.command[1].endswith(f"/scripts/performance/{Path(script).name}")
        assert workload.find_time_limit(row.size, row.gpu_type, "weak") == upstream["time"], key
        assert row.image is not None
        assert f"nvidia+nemo+{row.image.rpartition(':')[2]}.sqsh" == upstream["image"], key
        spread = row.parallelism
        degrees = f"tp{spread.tensor}_pp{spread.pipeline}_cp{spread.context}_vp{spread.virtual_pipeline}"
        batch = f"mbs{row.micro_batch_size}_gbs{row.global_batch_size}"
        assert f"gpus{row.gpus}_{degrees}_ep{spread.expert or 1}_" in upstream["experiment"], key
        assert upstream["experiment"].endswith(batch), key
        bound.add((requested.binding, upstream["numactl"]))
    for binding, numactl in bound:
        assert numactl_of(f"{binding} train", tmp_path) == numactl_of(f"{numactl} train", tmp_path)


def test_the_suites_are_planned_whole():
    """The suites have 57 cells (Exemplar_validation.md); no cluster that could run them is needed."""
    cells = {}
    for name in list_sweeps():
        if name.startswith("exemplar-"):
            planned = plan_sweep(load_sweep(name), lambda _: None)
            requests = [cell.request for cell in planned.cells if cell.repeat == 1]
            cells[name] = {
                f"{request.workload} {request.size} {request.gpu_type} {request.dtype} {request.gpus}"
                for request in requests
            }
            assert len(planned.cells) == 3 * len(cells[name]) == 3 * len(requests)
    assert {name.removeprefix("exemplar-"): len(keys) for name, keys in cells.items()} == {
        **{"gb300": 14, "gb200": 13, "b300": 13, "b200": 12, "h100": 5}
    }
    recorded = {f"{name} {key}" for name, rows in RECORDED.items() for key in rows}
    assert set().union(*cells.values()) <= recorded


def test_a_suite_runs_where_its_gpus_are(config):
    assert not load_sweep("exemplar-gb200").has_cluster
    (config / "clusters/rack.yaml").write_text(
        "{name: rack, kind: slurm, gpu_type: gb200, connection: rack, work_dir: /shared, container: pyxis}\n"
    )
    sweep = load_sweep("exemplar-gb200")
    assert sweep.has_cluster
    assert {cell.request.cluster for cell in plan_sweep(sweep).cells} == {"rack"}
