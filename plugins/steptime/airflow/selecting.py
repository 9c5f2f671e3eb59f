"""Hands on one list of what an earlier task returned, for tasks that are mapped over it."""

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context


class SelectOperator(BaseOperator):
    """Returns one field of what another task returned.

    Airflow maps over a task's whole return value only. `@task` would do the same, but importing its
    decorator takes a third of the time that a DAG file may take.

    :param returned: what the other task returned. (templated)
    :param field: the name of the field; an empty list is returned if there is none.
    """

    template_fields: Sequence[str] = ("returned",)
    ui_color: str = "#eeeeee"

    def __init__(self, *, returned: Any, field: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.returned = returned
        self.field = field

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Return the field."""
        return self.returned.get(self.field, [])
