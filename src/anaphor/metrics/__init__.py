"""Metrics and results: counts first, scores last, each with a signature of how it was measured."""
