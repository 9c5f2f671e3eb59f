"""Training on the CPU: a stand-in for CUDA, layers without GPU kernels and initial weights."""
