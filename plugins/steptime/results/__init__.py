"""What came of it: measurement, checks, verdict, provenance, the store and its report."""
