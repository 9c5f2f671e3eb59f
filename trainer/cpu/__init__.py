"""Training on the CPU: a stand-in for CUDA, layers without GPU kernels, initial weights, measured peak."""
