"""Files to try, to read and to copy. None of them is used by the program.

`--import leaky_mixer.py`, `trace two_heads.py::layer` and `study diversify` find them by name. Others are scripts:
`python -m anaphor.examples.demo`.
"""
