"""Jobs are followed on a local cluster of the test's own."""

from local_home import a_run, home, planned

__all__ = ["a_run", "home", "planned"]  # fixtures
