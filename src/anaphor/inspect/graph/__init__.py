"""Computation graphs of functions on tensors, with a value and a gradient at every node."""
