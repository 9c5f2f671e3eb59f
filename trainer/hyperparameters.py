"""Options of the optimizer: Adam as in NeMo's pre-training recipes, its rate the same for any length.

A schedule that anneals over the run's steps would give a run of 20 steps and a run of 22 different rates, and
a resumed run could not be compared with an uninterrupted one.
"""

LEARNING_RATE = 3e-4
WARMUP_STEPS = 10
"""Steps over which the rate rises linearly; it is constant afterwards."""
BETAS = (0.9, 0.95)
EPSILON = 1e-5
WEIGHT_DECAY = 0.1
CLIP_GRADIENT = 1.0
"""The highest norm of the gradient over all weights."""
