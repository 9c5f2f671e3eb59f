"""A package by others that adds one of everything to steptime through its entry points alone."""
