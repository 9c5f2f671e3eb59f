"""Reading training logs: formats, checkpoints, records of the trainer, causes of failure."""
