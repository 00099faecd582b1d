"""Runs and studies of a folder as data, and what shows them: the live page, the report and `anaphor runs`."""
