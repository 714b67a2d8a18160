"""The shared state of a notebook: which corpus, tokenizer, model, run, adapter and sampling settings are current."""

from nbllm.sessions.core import Session, current_session
from nbllm.sessions.models import ModelReference

__all__ = ["ModelReference", "Session", "current_session"]
