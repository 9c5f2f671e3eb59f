"""steptime's metadata for Airflow's provider manager; entry point `apache_airflow_provider`."""

from typing import Any

from steptime import __version__

_RUNAI = {
    "connection-type": "runai",
    "hook-class-name": "steptime.airflow.hooks.RunaiHook",
    "hook-name": "Run:ai",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port"],
        "relabeling": {"host": "Base URL", "login": "Application ID", "password": "Application secret"},
        "placeholders": {"host": "https://nvidia.run.ai/api/v1", "login": "llmb-qa"},
    },
    "conn-fields": {
        "project": {
            "label": "Project",
            "description": "The Run:ai project to train in; it comes before the one in the cluster's file.",
            "schema": {"type": ["string", "null"]},
        },
    },
}
"""The connection type of Run:ai, for what the recipe documents call BASE_URL, APP_ID, APP_SECRET and
PROJECT_NAME."""


_BENCHMARKS = "LLM pre-training benchmarks"
_RUNAI_NAME = "Run:ai"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's name, components and documentation."""
    return {
        "package-name": "steptime",
        "name": "steptime",
        "description": "Benchmark LLM pre-training on GPU clusters",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _BENCHMARKS,
                "external-doc-url": "https://github.com/NVIDIA/dgxc-benchmarking",
                "tags": ["ml"],
            },
            {
                "integration-name": _RUNAI_NAME,
                "external-doc-url": "https://run-ai-docs.nvidia.com/",
                "tags": ["service"],
            },
        ],
        "operators": _modules(
            _BENCHMARKS,
            *("operators", "result_operators", "dag_builder", "cluster_check", "send_report"),
            *("sweep.confirming", "sweep.operators"),
        ),
        "sensors": _modules(_BENCHMARKS, "sensors"),
        "triggers": _modules(_BENCHMARKS, "triggers"),
        "hooks": _modules(_RUNAI_NAME, "hooks"),
        "connection-types": [_RUNAI],
        "extra-links": ["steptime.airflow.links.ResultsLink"],
    }


def _modules(integration: str, *names: str) -> list[dict[str, Any]]:
    return [
        {
            "integration-name": integration,
            "python-modules": [f"steptime.airflow.{name}" for name in names],
        }
    ]
