"""Recipes as rows of tables."""

from steptime.recipes import tables
from steptime.recipes.workloads import load_workload


def test_a_row_has_the_documents_columns_and_how_it_runs() -> None:
    rows = [row for row in tables.rows(load_workload("llama3.1")) if row["size"] == "70b"]
    expected = {"recipe": "llama3.1-25.04", "parameters": 70_552_387_584, "active_parameters": 70_552_387_584}
    expected |= {"tp": 4, "vp": 5, "ep": None, "dp": 2, "ga": 64, "max_steps": 50, "window": "last"}
    expected |= {"time_limit": "00:30:00", "flops_formula": "llama3.1-25.04"}
    assert expected.items() <= rows[0].items()


def test_a_setting_of_a_launch_has_its_condition_and_source() -> None:
    workload = load_workload("nemotron4-340b")
    rows = list(tables.launch_rows(workload))
    assert len(rows) == sum(len(rule.settings()) for rule in workload.performance.rules)
    gpu_types = [name for name in workload.gpu_types if name != "cpu"]
    for row in rows:
        assert row["recipe"] == "nemotron4-340b-25.12"
        assert row["source"] in workload.performance.sources.values()
        assert set(row["gpu_types"].split(", ")) <= set(gpu_types)
    assert {row["condition"] for row in rows if row["setting"] == "ranks_per_numa_node"} == {"slurm"}
    assert ", ".join(gpu_types) in {row["gpu_types"] for row in rows}
