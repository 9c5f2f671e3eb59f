"""The declaration of the columns, and the values of some of them."""

import pytest

from steptime.measure.report import format_column
from steptime.store.columns import (
    BY_NAME,
)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("step_time_mean_s", [12.27, 0.25], ["12.2700", "0.2500"]),
        ("step_time_mean_s", [1234.5, None, 100.0], ["1,234.5", "", "100.0"]),
        ("queue_wait_s", [1234.6, 1.04], ["1,235", "1"]),
        ("step_time_over_published", [1.1, 0.98], ["10.0 % slower", "2.0 % faster"]),
        ("proxy", [True, False], ["proxy", ""]),
    ],
)
def test_numbers_of_a_column_have_equal_decimals(name, values, expected):
    assert format_column(BY_NAME[name], [{name: value} for value in values]) == expected
