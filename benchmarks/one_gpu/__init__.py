"""How much of one GPU the true layers reach, by a loop over torch alone, for GPUs that NeMo does not fit.

The models are those that Megatron-Core builds for NeMo, matrix by matrix: on the CPU both take the same steps
from the same weights (tests/trainer/test_thin_loop.py). A result names the loop that it was measured with.
"""
