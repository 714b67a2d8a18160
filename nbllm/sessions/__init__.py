"""The shared state of a notebook: which corpus, tokenizer, model, run, adapter and sampling settings are current."""

from nbllm.sessions.core import Session
from nbllm.sessions.current import current_session, open_session, session_names
from nbllm.sessions.models import ModelReference

__all__ = ["ModelReference", "Session", "current_session", "open_session", "session_names"]
