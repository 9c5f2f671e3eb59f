"""Find out whether training got slower: series of like runs, suspected and confirmed changes, comparisons."""
