"""Recurrences whose state is a matrix for each head, one file a mixer. `matrix_state` has the mathematics of all."""
