"""Measurement and quality checks of one run, its record, and the import and archive of runs."""
