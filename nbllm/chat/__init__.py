"""Examples to fine-tune on: conversations, instructions, completions, as ids of which only answers are targets.

Importing this room loads neither torch nor transformers.
"""

from nbllm.chat.conversations import FORMATS, Pair, find_format
from nbllm.chat.preview import Preview
from nbllm.chat.records import Record, find_records, names_records
from nbllm.chat.set import ExampleSet, make_examples
from nbllm.chat.template import DEFAULT_TEMPLATE, ChatTemplate, with_template

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
    "names_records",
    "with_template",
]
