"""Interchange: weights of other libraries into our models and back, as folders of `transformers`, without importing it.

`read_pretrained` reads a folder, `write_pretrained` writes one. A kind of model is a module here that says how its
configuration becomes a spec of ours, and which of its tensors are which of our parameters.
"""

from anaphor.interchange.pretrained import Pretrained, read_pretrained, write_pretrained

__all__ = ["Pretrained", "read_pretrained", "write_pretrained"]
