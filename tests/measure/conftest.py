"""Fixtures of the store and its job ledger."""

from tests.store.conftest import ledger_job, postgresql, postgresql_url, store, store_url

__all__ = ["ledger_job", "postgresql", "postgresql_url", "store", "store_url"]
