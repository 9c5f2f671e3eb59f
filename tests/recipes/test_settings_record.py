"""What upstream's launch scripts set, as recorded: whole, and with what is known of them in it."""

import csv
import functools
from collections.abc import Iterator, Mapping

from printed_tables import by_name

from recorders.nemo.record_settings import MIXTURES, TABLE
from recorders.nemo.releases import OF_MIXTURES, RELEASES
from recorders.nemo.settings_record import Flat, load, row_of, settings_of
from steptime.recipes.workloads import load_workload

MIB = 2**20


def rows() -> Iterator[dict[str, str]]:
    """Of models that steptime's own trainer builds; upstream launches its recipes by name itself."""
    with TABLE.open() as table:
        yield from (row for row in csv.DictReader(table) if not by_name(row["recipe"]))


documents = functools.cache(load)


def recorded(row: Mapping[str, str], mode: str | None = None) -> Flat:
    document = documents()[row["recipe"]]
    return settings_of(document if mode is None else document["modes"][mode], row)


SIZES = {
    "tp": ("strategy.tensor_model_parallel_size", "nemo1.model.tensor_model_parallel_size"),
    "pp": ("strategy.pipeline_model_parallel_size", "nemo1.model.pipeline_model_parallel_size"),
    "cp": ("strategy.context_parallel_size", "nemo1.model.context_parallel_size"),
    "mbs": ("data.micro_batch_size", "nemo1.model.micro_batch_size"),
    "gbs": ("data.global_batch_size", "nemo1.model.global_batch_size"),
    "layers": ("model.num_layers", "nemo1.model.num_layers"),
    "seq_len": ("data.seq_length", "nemo1.model.data.seq_length"),
}
"""By column of the tables: what it is called in NeMo 2, and in NeMo 1."""


def test_every_row_of_the_documents_is_recorded_with_its_own_sizes() -> None:
    wrong = []
    for row in rows():
        settings = recorded(row)
        for column, (nemo_2, nemo_1) in SIZES.items():
            value = settings.get(nemo_2, settings.get(nemo_1))
            if value != int(row[column]):
                wrong.append((row["recipe"], row_of(row), column, value))
        if {key.partition(".")[0] for key in settings} < {"environment", "launch"}:
            wrong.append((row["recipe"], row_of(row), "groups", sorted(settings)))
    assert {row["recipe"] for row in rows()} == set(documents())
    assert not wrong


def test_rows_of_mixtures_that_are_data_of_tests_are_recorded_with_their_own_sizes() -> None:
    of_mixtures = load(MIXTURES / "settings.json")
    assert of_mixtures.keys() == {release.workload for release in OF_MIXTURES}
    expert = {"ep": "strategy.expert_model_parallel_size", "etp": "strategy.expert_tensor_parallel_size"}
    names = {column: nemo_2 for column, (nemo_2, _) in SIZES.items()} | expert
    compared = 0
    with (MIXTURES / "references/configurations.csv").open() as table:
        for row in csv.DictReader(table):
            if row["recipe"] not in of_mixtures:
                continue
            settings = settings_of(of_mixtures[row["recipe"]], row)
            assert {name: settings[nemo] for name, nemo in names.items()} == {
                name: int(row[name]) for name in names
            }, row
            compared += 1
    assert compared == 28


def test_what_the_trainer_would_need_to_launch_those_as_upstream_does() -> None:
    """The trainer cannot drop tokens above an expert's capacity, so these rows are data of tests only."""
    grok, llama = load(MIXTURES / "settings.json").values()
    assert {one["settings"]["token_drop.moe_expert_capacity_factor"] for one in (grok, llama)} == {1.0}
    assert llama["settings"]["model.class"] == "Llama4Experts128Config"
    assert llama["settings"]["model.moe_layer_freq"] == [0, 1] * 24


def test_each_documents_file_names_the_release_that_was_recorded() -> None:
    for release in RELEASES:
        named = f"NVIDIA/dgxc-benchmarking {release.tag}, {release.folder}/README"
        assert named in load_workload(release.workload).document


LLAMA = {"recipe": "llama3.1-25.04", "size": "70b", "dtype": "fp8"}
NEMOTRON_H = {"recipe": "nemotron-h-25.05"}
NEMOTRON_25_12 = {"recipe": "nemotron4-340b-25.12"}
NEMO_1 = {"recipe": "nemotron4-340b-24.11"}

FACTS: list[tuple[dict[str, str], Flat]] = [
    (
        LLAMA,
        {
            "precision.fp8_params": True,
            "precision.fp8_recipe": ...,
            "precision.fp8_param_gather": ...,
            "precision.fp8_amax_history_len": 1024,
            "overlap.tp_comm_overlap_cfg": "userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192",
            "overlap.overlap_param_gather_with_optimizer_step": True,
            "overlap.defer_embedding_wgrad_compute": True,
            "overlap.wgrad_deferral_limit": 22,
            "gc.gc_interval_train": 100,
            "ddp.average_in_collective": True,
            "environment.NCCL_NVLS_ENABLE": "0",
            "environment.NCCL_P2P_NET_CHUNKSIZE": str(2 * MIB),
            "environment.PYTORCH_CUDA_ALLOC_CONF": ...,
            "launch.ranks_per_numa_node": None,
            "launch.vboost": True,
        },
    ),
    ({**LLAMA, "size": "405b"}, {"overlap.wgrad_deferral_limit": 50}),
    (
        {**LLAMA, "size": "405b-proxy", "gpus": "32"},
        {
            "overlap.overlap_param_gather_with_optimizer_step": False,
            "environment.NCCL_P2P_NET_CHUNKSIZE": ...,
        },
    ),
    (
        {**LLAMA, "size": "8b"},
        {"overlap.tp_comm_overlap": False, "environment.CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    ),
    (
        NEMOTRON_H,
        {
            "precision.fp8_recipe": "delayed",
            "precision.fp8_param_gather": True,
            "overlap.tp_comm_overlap": ...,
            "gc.gc_interval_train": ...,
            "ddp.overlap_param_gather": False,
            "ddp.average_in_collective": False,
            "model.cross_entropy_fusion_impl": "te",
            "environment.NVTE_FUSED_ATTN": "0",
            "environment.NCCL_NVLS_ENABLE": "0",
            "launch.ranks_per_numa_node": 4,
            "launch.vboost": True,
        },
    ),
    (
        {**NEMOTRON_25_12, "dtype": "fp8"},
        {
            "precision.fp8_recipe": "tensorwise",
            "precision.first_last_layers_bf16": False,
            "optimizer.use_precision_aware_optimizer": False,
            "model.cross_entropy_fusion_impl": "te",
            "environment.NCCL_NVLS_ENABLE": "0",
            "launch.vboost": False,
            "data.num_workers": 8,
            "data.pin_memory": True,
        },
    ),
    ({**NEMOTRON_25_12, "dtype": "bf16"}, {"optimizer.use_precision_aware_optimizer": True}),
    (
        {**NEMOTRON_25_12, "gpu_type": "gb200"},
        {
            "launch.ranks_per_numa_node": 2,
            "environment.NCCL_NET_GDR_LEVEL": "PHB",
            "environment.NCCL_NET_GDR_C2C": "1",
            "environment.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "environment.CUDA_DEVICE_MAX_CONNECTIONS": "32",
        },
    ),
    (
        {**NEMOTRON_25_12, "gpu_type": "b200"},
        {
            "launch.ranks_per_numa_node": 4,
            "environment.NCCL_NET_GDR_LEVEL": ...,
            "environment.PYTORCH_CUDA_ALLOC_CONF": ...,
            "model.enable_cuda_graph": True,
        },
    ),
    (
        {**NEMOTRON_25_12, "gpu_type": "h100"},
        {"launch.ranks_per_numa_node": 4, "model.enable_cuda_graph": False},
    ),
    (
        {**NEMO_1, "dtype": "fp8"},
        {
            "nemo1.model.fp8_params": True,
            "nemo1.model.wgrad_deferral_limit": 22,
            "environment.NVTE_FWD_LAYERNORM_SM_MARGIN": "8",
            "environment.NVTE_UB_SPLIT_AG": "1",
            "environment.NVTE_FUSED_ATTN": "0",
            "environment.CUDA_DEVICE_MAX_CONNECTIONS": "1",
        },
    ),
    ({**NEMO_1, "dtype": "bf16"}, {"nemo1.model.fp8": False, "environment.NVTE_UB_SPLIT_AG": "0"}),
]
"""Rows, and what was read of them in the sources by hand. An ellipsis: the setting is not there."""


def test_what_was_read_in_the_sources_is_in_the_record() -> None:
    wrong = []
    for columns, facts in FACTS:
        fitting = [row for row in rows() if columns.items() <= row.items()]
        assert fitting, columns
        for row in fitting:
            settings = recorded(row)
            wrong += [
                (row["recipe"], row_of(row), key, settings.get(key, ...))
                for key, value in facts.items()
                if settings.get(key, ...) != value
            ]
    assert not wrong


def test_a_mode_has_what_it_changes_alone() -> None:
    b200 = {"dtype": "bf16", "gpu_type": "b200", "scaling": "weak", "gpus": "1024"}
    (row,) = [row for row in rows() if {**NEMOTRON_25_12, **b200}.items() <= row.items()]
    load_changes = recorded(row, "checkpoint_load")
    assert load_changes["optimizer.use_precision_aware_optimizer"] is False
    assert load_changes["overlap.overlap_param_gather_with_optimizer_step"] is False
    save_changes = recorded(row, "checkpoint_save")
    assert save_changes["overlap.overlap_param_gather_with_optimizer_step"] is False
    assert "optimizer.use_precision_aware_optimizer" not in save_changes
    settings = recorded(row)
    assert all(settings.get(key, ...) != value for key, value in (load_changes | save_changes).items())
