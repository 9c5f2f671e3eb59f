"""Whether it got slower: series of runs, what is suspected and confirmed of each, and comparisons."""
