"""The faults that Anaphor promises to survive, as an experiment: `make torture`."""
