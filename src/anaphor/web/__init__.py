"""The live page of a folder of runs, and the report: what the command line shows, in a browser."""
