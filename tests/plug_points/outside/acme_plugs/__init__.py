"""A package of somebody else's that adds one of everything to steptime, by its entry points alone."""
