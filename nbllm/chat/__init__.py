"""Examples to fine-tune on: conversations, instructions and completions, as token ids of which only answers are targets.

Importing this room loads neither torch nor transformers.
"""

from nbllm.chat.conversations import FORMATS, Pair, find_format
from nbllm.chat.preview import Preview
from nbllm.chat.records import Record, find_records
from nbllm.chat.set import ExampleSet, make_examples
from nbllm.chat.template import DEFAULT_TEMPLATE, ChatTemplate

__all__ = [
    "DEFAULT_TEMPLATE",
    "FORMATS",
    "ChatTemplate",
    "ExampleSet",
    "Pair",
    "Preview",
    "Record",
    "find_format",
    "find_records",
    "make_examples",
]
