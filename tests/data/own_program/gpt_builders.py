"""A module that `pretrain_gpt.py` imports from its own folder."""


def batch_of(ranks):
    """Return the global batch size: four samples per rank."""
    return 4 * ranks
