"""Panels: live widgets for a run and for sampling, each with a static face that stays in the saved notebook.

One Python file and one JavaScript module a panel. They know the session and the run as objects handed in, and errors;
nothing here is imported before a panel is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbllm.panels.attention import show_attention
    from nbllm.panels.clean import show_clean
    from nbllm.panels.compare import show_comparison
    from nbllm.panels.finetune import show_finetune
    from nbllm.panels.generate import show_generate
    from nbllm.panels.lens import show_lens
    from nbllm.panels.model import show_model
    from nbllm.panels.registry import close_all
    from nbllm.panels.tabs import show_tabs
    from nbllm.panels.tokenizer import show_tokenizer
    from nbllm.panels.train import show_run, static_html, static_text

__all__ = [
    "close_all",
    "show_attention",
    "show_clean",
    "show_comparison",
    "show_finetune",
    "show_generate",
    "show_lens",
    "show_model",
    "show_run",
    "show_tabs",
    "show_tokenizer",
    "static_html",
    "static_text",
]

_HOMES = {
    "close_all": "registry",
    "show_attention": "attention",
    "show_clean": "clean",
    "show_finetune": "finetune",
    "show_comparison": "compare",
    "show_generate": "generate",
    "show_lens": "lens",
    "show_model": "model",
    "show_run": "train",
    "show_tabs": "tabs",
    "show_tokenizer": "tokenizer",
    "static_html": "train",
    "static_text": "train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nbllm.panels' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"nbllm.panels.{_HOMES[name]}"), name)
