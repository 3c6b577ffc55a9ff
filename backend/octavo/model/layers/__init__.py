"""The decoder's parts. Each owns its weights, and reaches the kernels through octavo_kernels alone."""
