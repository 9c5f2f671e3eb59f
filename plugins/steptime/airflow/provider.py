"""What steptime tells Airflow's provider manager; found by the entry point `apache_airflow_provider`."""

from typing import Any

from steptime import __version__


def get_provider_info() -> dict[str, Any]:
    """Name and version of the provider, and the buttons of its operators."""
    return {
        "package-name": "steptime",
        "name": "steptime",
        "description": "Benchmark LLM pre-training on GPU clusters",
        "versions": [__version__],
        "extra-links": ["steptime.airflow.links.ResultsLink", "steptime.airflow.links.StartedRunLink"],
    }
