"""The DAG that runs a sweep, with its cells and its operators."""
