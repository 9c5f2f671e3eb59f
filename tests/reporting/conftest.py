"""Half a year of runs to report."""

from half_year import half_years

__all__ = ["half_years"]  # a fixture
