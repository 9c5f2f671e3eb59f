"""The DAGs that run sweeps and trials, with their cells and operators."""
