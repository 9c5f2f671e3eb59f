"""Tables, queries and transactions of the metrics store, and the job ledger; nothing else writes SQL."""
