"""What the Airflow UI shows of the DAG of a workload: its name for people, and its page."""

from collections.abc import Iterable

from airflow.providers.common.compat.sdk import conf

from steptime.recipes.workload_file import Configuration, Workload


def display_name(document: Workload) -> str:
    """Return the name for people, `Llama 3.1 · 25.04`."""
    title = document.title.removesuffix(f"({document.release})").rstrip()
    return f"{title} · {document.release}"


def documentation(document: Workload) -> str:
    """Describe in Markdown what the DAG benchmarks, at which scales, and where its results are."""
    page = f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/plugin/step-times"
    return (
        f"Benchmarks the pre-training of **{document.title}** as `{document.document}` describes it.\n\n"
        f"{_table(document)}\n\n"
        "`steptime plan` shows what a set of params would run. Each run is one job; its task `wait` logs "
        f"its progress, and results are on the page [Step times]({page})."
    )


def _table(document: Workload) -> str:
    lines = ["| size | GPU type | dtype | scaling | GPUs |", "|---|---|---|---|---|"]
    for size in document.size_names():
        lines += [f"| {' | '.join(cells)} |" for cells in _rows(size, document.rules_of(size))]
    return "\n".join(lines)


def _rows(size: str, rules: Iterable[Configuration]) -> Iterable[tuple[str, ...]]:
    """The table's rows for a size; rules that differ only in what is not shown are one row."""
    return dict.fromkeys(
        (
            size,
            ", ".join(rule.gpu_types),
            ", ".join(rule.dtypes),
            ", ".join(rule.global_batch_size),
            ", ".join(map(str, rule.gpus)),
        )
        for rule in rules
    )
