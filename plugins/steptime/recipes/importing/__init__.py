"""Write workload files from a release of NVIDIA/exemplar-performance."""
