"""The recorded settings of upstream's launch scripts have every row of the documents, with its own sizes."""

import csv

from printed_tables import by_name

from recorders.nemo.record_settings import TABLE
from recorders.nemo.releases import RELEASES
from recorders.nemo.settings_record import load, row_of, settings_of
from steptime.recipes.workloads import load_workload


def rows():
    """Yield the rows of models that steptime's own trainer builds; upstream launches recipes by name."""
    with TABLE.open() as table:
        yield from (row for row in csv.DictReader(table) if not by_name(row["recipe"]))


SIZES = {
    "tp": ("strategy.tensor_model_parallel_size", "nemo1.model.tensor_model_parallel_size"),
    "pp": ("strategy.pipeline_model_parallel_size", "nemo1.model.pipeline_model_parallel_size"),
    "cp": ("strategy.context_parallel_size", "nemo1.model.context_parallel_size"),
    "mbs": ("data.micro_batch_size", "nemo1.model.micro_batch_size"),
    "gbs": ("data.global_batch_size", "nemo1.model.global_batch_size"),
    "layers": ("model.num_layers", "nemo1.model.num_layers"),
    "seq_len": ("data.seq_length", "nemo1.model.data.seq_length"),
}
"""By column of the tables: the setting's name in NeMo 2, and in NeMo 1."""


def test_every_row_of_the_documents_is_recorded_with_its_own_sizes():
    documents, wrong = load(), []
    for row in rows():
        settings = settings_of(documents[row["recipe"]], row)
        for column, (nemo_2, nemo_1) in SIZES.items():
            value = settings.get(nemo_2, settings.get(nemo_1))
            if value != int(row[column]):
                wrong.append((row["recipe"], row_of(row), column, value))
        if {key.partition(".")[0] for key in settings} < {"environment", "launch"}:
            wrong.append((row["recipe"], row_of(row), "groups", sorted(settings)))
    assert {row["recipe"] for row in rows()} == set(documents)
    assert not wrong


def test_each_documents_file_names_the_release_that_was_recorded():
    for release in RELEASES:
        named = f"NVIDIA/dgxc-benchmarking {release.tag}, {release.folder}/README"
        assert named in load_workload(release.workload).document
