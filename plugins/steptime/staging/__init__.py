"""Putting on a cluster what a run needs there: the trainer's code, and its environment or an image."""
