"""A session that has a tokenizer and a store, and nothing else."""

from traitlets import Any as AnyTrait
from traitlets import HasTraits


class TokenizingSession(HasTraits):
    tokenizer = AnyTrait()
    corpus = AnyTrait(None, allow_none=True)

    def __init__(self, store, tokenizer):
        super().__init__()
        self.store, self.tokenizer = store, tokenizer
