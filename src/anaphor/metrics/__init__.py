"""Scores: counts first, numbers last, each with a signature of what produced it."""
