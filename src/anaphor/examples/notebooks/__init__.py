"""Notebooks to open in Jupyter or Colab."""
