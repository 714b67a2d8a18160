"""Optional packages of the exports: asked for before anything is loaded, with an error that names the extra."""

from __future__ import annotations

import importlib.util

from nbllm.errors import UsageError


def installed(module: str) -> bool:
    """Whether a top-level module can be imported; it isn't imported."""
    return importlib.util.find_spec(module) is not None


def install_line(extra: str) -> str:
    """What to type to get an extra of nbllm."""
    return f'pip install "nbllm[{extra}]"'


def need(what: str, extra: str, *modules: str) -> None:
    """Raises UsageError, with the extra to install, where one of the modules is missing.

    Args:
        what: what needs it, as the beginning of a sentence: `The export to ONNX`.
        extra: the extra of nbllm that brings it.
        modules: top-level modules.
    """
    for module in modules:
        if not installed(module):
            raise UsageError(f"{what} needs {module}, which isn't installed", next=f"Type {install_line(extra)}")
