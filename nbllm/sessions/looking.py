"""What a session shows of a model's inside: attention, the logit lens, the architecture.

Like the session's other methods these choose inputs; `nbllm.inspect` does the work.
"""

from __future__ import annotations

from nbllm.sessions.sampling import Sampling


class Looking(Sampling):
    """The part of `Session` that looks into a model."""
