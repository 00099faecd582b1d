"""Tasks bring batches, a loss and a score; the trainer never asks which one it has."""
