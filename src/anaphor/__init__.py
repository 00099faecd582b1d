"""A workbench for sequence models: train, compare and look inside recurrent, attention and hybrid models."""

__version__ = "0.1.0"
