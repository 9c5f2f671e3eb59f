"""What a CPU needs for training: CUDA's names, layers without kernels, whole initial weights, its peak."""
