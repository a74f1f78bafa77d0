"""From graphs to kernels: which nodes share a kernel, and the spec of each."""
