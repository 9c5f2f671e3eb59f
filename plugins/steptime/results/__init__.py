"""Measurement, quality checks, provenance, and the metrics store."""
