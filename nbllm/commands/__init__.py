"""What a typed line means: splitting, options, help, completion, and one file a verb. No IPython here."""

from nbllm.commands.base import Call, Command
from nbllm.commands.registry import COMMANDS, find

__all__ = ["COMMANDS", "Call", "Command", "find"]
