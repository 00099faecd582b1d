"""Runs and studies of a folder as data, for the terminal, the report and the live page. Imports no torch."""
