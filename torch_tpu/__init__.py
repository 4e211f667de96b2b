"""torch_tpu: the "tpu" device for PyTorch, on any PJRT plugin.

`import torch` loads this package by itself; nothing needs to import it. Programs use `torch.tpu` and device="tpu".
"""

from torch_tpu._version import __version__

__all__ = ["__version__"]

from torch_tpu import _loader as _loader

_loader.load()
