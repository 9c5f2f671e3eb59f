"""Steptime's trainer: trains one planned run with NeMo 2, on GPUs or the CPU, and prints NeMo's step lines.

It runs inside the training environment and shares two things with the rest of steptime: the planned run that
it reads (`run.json`) and the log that it writes. It imports nothing of the pipeline. See
docs/reference/trainer.md.
"""
