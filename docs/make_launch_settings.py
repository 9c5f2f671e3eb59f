"""Write the table of docs/launch-settings.md from the data: `python docs/make_launch_settings.py`."""

from pathlib import Path

from steptime.recipes.tables import launch_rows
from steptime.recipes.workloads import list_workloads, load_workload

PAGE = Path(__file__).with_name("launch-settings.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def table() -> str:
    """A row for each setting, a column for each document and GPU type; a cell says where what is set."""
    cells: dict[str, dict[str, list[str]]] = {}
    columns: list[str] = []
    for name in list_workloads():
        for row in launch_rows(load_workload(name)):
            for gpu_type in row["gpu_types"].split(", "):
                column = f"{name} {gpu_type}"
                columns += [column] if column not in columns else []
                values = cells.setdefault(row["setting"], {}).setdefault(column, [])
                if not row["condition"] or row["condition"] == "slurm":
                    values.clear()  # this one holds for all, and counts after them
                values.append(_words(row["value"]) + (f" ({row['condition']})" if row["condition"] else ""))
    columns.sort()
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for setting in sorted(cells):
        in_columns = ("<br>".join(cells[setting].get(column, ())) for column in columns)
        lines.append(f"| `{setting}` | {' | '.join(in_columns)} |")
    return "\n".join(lines) + "\n"


def _words(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def page() -> str:
    """The page with today's table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
