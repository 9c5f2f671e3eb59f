"""Values for Airflow's Helm chart: its schema accepts them, and they fit the image and the documentation."""

import gzip
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from steptime.clusters.config import load_cluster
from steptime.clusters.slurm.config import SlurmConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def values():
    return dict(yaml.safe_load((ROOT / "docker/helm/values.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def schema():
    """Return values.schema.json of the chart airflow 1.22.0 (apache/airflow, Apache-2.0)."""
    packed = ROOT / "tests/data/helm/airflow-1.22.0.values.schema.json.gz"
    return dict(json.loads(gzip.decompress(packed.read_bytes())))


@pytest.mark.parametrize("executor", ["CeleryExecutor", "KubernetesExecutor"])
def test_the_chart_accepts_the_values(values, schema, executor):
    jsonschema.validate(values | {"executor": executor}, schema)


def test_the_chart_knows_every_key(values, schema):
    """The chart silently ignores unknown keys."""

    def unknown(found, known):
        if not (properties := known.get("properties")):
            return []
        missing = [key for key in found if key not in properties]
        inner = [
            f"{key}.{name}"
            for key in found
            if isinstance(found[key], dict) and key in properties
            for name in unknown(found[key], properties[key])
        ]
        return missing + inner

    assert unknown(values, schema) == []


def test_no_key_is_deprecated(values, schema):
    def deprecated(used, known):
        of_keys = {key: known.get("properties", {}).get(key, {}) for key in used}
        keys = [key for key, rule in of_keys.items() if "deprecated" in rule.get("description", "").lower()]
        for key, rule in of_keys.items():
            if isinstance(used[key], dict):
                keys += [f"{key}.{name}" for name in deprecated(used[key], rule)]
        return keys

    assert deprecated(values, schema) == []


def test_the_documentation_makes_the_volumes_that_are_named(values):
    text = (ROOT / "docs/reference/team-deployment.md").read_text(encoding="utf-8")
    claims = {
        claim["claimName"] for entry in values["volumes"] if (claim := entry.get("persistentVolumeClaim"))
    }
    assert claims == {"steptime-home"}
    assert set(re.findall(r"kind: PersistentVolumeClaim\n +metadata: {name: ([a-z-]+)}", text)) == claims


def test_the_cluster_of_the_example_can_be_loaded(values, tmp_path, monkeypatch):
    (tmp_path / "clusters").mkdir()
    [files] = [yaml.safe_load(entry["data"]) for entry in values["extraConfigMaps"].values()]
    for name, text in files.items():
        (tmp_path / "clusters" / name).write_text(text)
    for name in ("gpus.yaml", "flops.yaml"):
        (tmp_path / name).symlink_to(ROOT / "config" / name)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    environment = {entry["name"]: entry["value"] for entry in values["env"]}
    cluster = load_cluster(environment["STEPTIME_DEFAULT_CLUSTER"])
    assert isinstance(cluster, SlurmConfig)
    given = {entry["envName"] for entry in values["secret"]}
    assert f"AIRFLOW_CONN_{cluster.connection.upper()}" in given


def test_the_documentation_makes_every_secret(values):
    text = (ROOT / "docs/reference/team-deployment.md").read_text(encoding="utf-8")
    made = set(re.findall(r"create secret generic ([a-z-]+) ", text))
    needed = {entry["secretName"] for entry in values["secret"]} | {values["data"]["metadataSecretName"]}
    needed |= {value for name, value in values.items() if name.endswith("SecretName")}
    assert made == needed
