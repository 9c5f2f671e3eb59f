"""The job ledger for tests without an event loop: each method of `Ledger`, called to its end."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from steptime.store.ledger import Ledger


class SyncLedger:
    """Calls the methods of a `Ledger` of the settings' store that does not wait while the store is away."""

    def __getattr__(self, name):
        def call(*arguments, **named):
            work = getattr(Ledger(print, patience_s=0), name)(*arguments, **named)
            with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
                return thread.submit(asyncio.run, work).result()

        return call


ledger = SyncLedger()
