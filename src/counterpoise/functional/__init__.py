"""Tensors in, tensors out: losses, transport, metrics and their intervals. Needs torch and nothing else."""
