"""Grading of submissions: a student's code runs in a sandbox, and what it returns is compared outside of it."""
