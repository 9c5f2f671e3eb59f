"""Empty: environments that were installed before the cluster policy was removed still import this module."""
