"""Synthetic tasks: sequences drawn from a rule, with known answers. They show what a layer can do, and what not.

`base.py` says what they have in common; each other file has the tasks of one kind.
"""
