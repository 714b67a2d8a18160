"""The byte alphabet of byte-level BPE: each of the 256 bytes written as one printable character.

Source: `bytes_to_unicode` in GPT-2's encoder.py (Radford et al. 2019); every byte-level tokenizer.json uses it. Knows
nothing of tokenizers themselves.
"""

from __future__ import annotations


def _alphabet() -> list[str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(printable))
    return [letters[byte] for byte in range(256)]


BYTE_TO_LETTER: list[str] = _alphabet()
"""For each byte, the character that stands for it."""
LETTER_TO_BYTE: dict[str, int] = {letter: byte for byte, letter in enumerate(BYTE_TO_LETTER)}
"""The way back."""


def letters_to_bytes(letters: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for.

    A token with a character outside the alphabet (an added token, say) stands for its own UTF-8.
    """
    try:
        return bytes(LETTER_TO_BYTE[letter] for letter in letters)
    except KeyError:
        return letters.encode()
