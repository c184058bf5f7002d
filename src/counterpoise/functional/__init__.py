"""Tensors in, tensors out: losses, transport, measures and their intervals. Needs torch and nothing else."""
