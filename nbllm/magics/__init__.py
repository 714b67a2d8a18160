"""The IPython extension: hands a line to its command and shows the result. Thin.

The only room that knows IPython; imported by `%load_ext nbllm` alone.
"""

from nbllm.magics.extension import load, unload

__all__ = ["load", "unload"]
