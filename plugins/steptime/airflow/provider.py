"""What steptime tells Airflow's provider manager; found by the entry point `apache_airflow_provider`."""

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
"""The connection type of Run:ai: BASE_URL, APP_ID, APP_SECRET and PROJECT_NAME of the recipe documents."""


def get_provider_info() -> dict[str, Any]:
    """Name and version of the provider, its connection type, and the buttons of its operators."""
    return {
        "package-name": "steptime",
        "name": "steptime",
        "description": "Benchmark LLM pre-training on GPU clusters",
        "versions": [__version__],
        "connection-types": [_RUNAI],
        "extra-links": ["steptime.airflow.links.ResultsLink", "steptime.airflow.links.StartedRunLink"],
    }
