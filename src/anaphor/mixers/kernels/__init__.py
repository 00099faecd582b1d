"""Fast paths written by hand. Each has a readable twin that the tests compare it with."""
