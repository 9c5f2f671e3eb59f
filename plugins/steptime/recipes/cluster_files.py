"""The configured clusters (`config/clusters/*.yaml`), and the fields of their files that planning reads."""

import functools
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from steptime.errors import unknown_value
from steptime.recipes.config_files import (
    Document,
    Mistake,
    file_state,
    load_each,
    load_yaml_model,
    read_document,
    unknown_file,
)
from steptime.recipes.gpus import gpu_types, load_gpu_type
from steptime.settings import config_file, config_names


class ClusterFile(BaseModel):
    """The fields of a cluster's file that planning reads; each kind of cluster defines further ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: str
    gpu_type: str
    """Key of config/gpus.yaml; `cpu` if ranks are CPU processes."""


def list_clusters() -> tuple[str, ...]:
    """List the names of all configured clusters, sorted."""
    return config_names("clusters")


def cluster_file(name: str) -> Path:
    """Return the path of the file of the cluster `name`."""
    return config_file(f"clusters/{name}.yaml")


def cluster_document(name: str) -> Document:
    """Read the file of a cluster as YAML. Raises UserError if it is missing or not YAML."""
    return read_document(_known(name))


def _known(name: str) -> Path:
    """Return the path of a cluster's file. Raises UserError if there is none."""
    if name not in list_clusters():
        raise unknown_file("cluster", name, list_clusters())
    return cluster_file(name)


def read_cluster_file(name: str) -> ClusterFile:
    """Read the fields of a cluster's file that planning uses. Raises UserError if it has a mistake."""
    path = _known(name)
    cluster = _load(path, file_state(path))
    if cluster.gpu_type not in gpu_types():
        unknown = unknown_value("GPU type", cluster.gpu_type, gpu_types())
        raise read_document(path).refusal([Mistake.of(unknown, "gpu_type")])
    load_gpu_type(cluster.gpu_type)  # refuses one that is described wrongly
    return cluster


def readable_clusters() -> dict[str, ClusterFile]:
    """Return the configured clusters whose files can be read, by name, sorted."""
    clusters, _ = load_each(
        list_clusters(), lambda name: (name, _load(path := cluster_file(name), file_state(path)))
    )
    return dict(clusters)


@functools.lru_cache(maxsize=64)
def _load(path: Path, _state: tuple[int, int]) -> ClusterFile:
    """Load a cluster's file. It is read again only when it changes, because forms ask for it very often."""
    return load_yaml_model(path, ClusterFile)
