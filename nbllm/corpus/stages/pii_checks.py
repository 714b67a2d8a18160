"""Check digits: card, account, phone and national identity numbers as their standards say.

Cards: ISO/IEC 7812-1 (Luhn). Accounts: ISO 13616 (IBAN, modulo 97, length by country). Phones: E.164 (8 to 15 digits).
Identity numbers: United States (SSN), Brazil (CPF), Spain (DNI, NIE), China (GB 11643), France (NIR), United Kingdom
(NINO, which has no check digit). Knows nothing of texts.
"""

from __future__ import annotations

import datetime
import re

_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20,
    "LV": 21, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15, "PK": 24,
    "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27,
    "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
}  # fmt: skip
_SPANISH = "TRWAGMYFPDXBNJZSQVHLCKE"
_CHINESE = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_PARTS = {
    "us": r"\d{3}-\d{2}-\d{4}",
    "br": r"\d{3}\.\d{3}\.\d{3}-\d{2}",
    "es": r"[XYZ]?-?\d{7,8}-?[A-Z]",
    "cn": r"[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx]",
    "fr": r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]) ?\d(?:\d|[AB]) ?\d{3} ?\d{3} ?\d{2}",
    "gb": r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]",
}
NATIONAL_IDS = "|".join(rf"(?<![\w.-]){pattern}(?![\w-])" for pattern in _PARTS.values())
"""What looks like an identity number."""


def is_card(value: str) -> bool:
    """13 to 19 digits with a right check digit."""
    digits = [int(character) for character in value if character.isdigit()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (doubled + sum(digits[::-2])) % 10 == 0


def is_iban(value: str) -> bool:
    """A length that the country has, and check digits that are right."""
    bare = value.replace(" ", "")
    if len(bare) != _IBAN_LENGTHS.get(bare[:2]):
        return False
    return int("".join(str(int(character, 36)) for character in bare[4:] + bare[:4])) % 97 == 1


def is_phone(value: str) -> bool:
    """8 to 15 digits; without any separator at least 10, so that a signed number isn't one."""
    digits = sum(map(str.isdigit, value))
    return 8 <= digits <= 15 and (digits >= 10 or bool(re.search(r"[ .()-]", value)))


def is_national_id(value: str) -> bool:
    """Whether one of the countries' rules holds."""
    for country, pattern in _PARTS.items():
        if re.fullmatch(pattern, value) and _RULES[country](re.sub(r"[ .-]", "", value)):
            return True
    return False


def _us(bare: str) -> bool:
    return bare[:3] not in ("000", "666") and bare[0] != "9" and bare[3:5] != "00" and bare[5:] != "0000"


def _br(bare: str) -> bool:
    digits = list(map(int, bare))
    if len(set(digits)) == 1:
        return False
    for size in (9, 10):
        total = sum(digit * weight for digit, weight in zip(digits, range(size + 1, 1, -1), strict=False))
        if total * 10 % 11 % 10 != digits[size]:
            return False
    return True


def _es(bare: str) -> bool:
    head = str("XYZ".index(bare[0])) + bare[1:-1] if bare[0] in "XYZ" else bare[:-1]
    return len(head) == 8 and bare[-1] == _SPANISH[int(head) % 23]


def _cn(bare: str) -> bool:
    try:
        datetime.date(int(bare[6:10]), int(bare[10:12]), int(bare[12:14]))
    except ValueError:
        return False
    total = sum(int(digit) * weight for digit, weight in zip(bare[:17], _CHINESE, strict=True))
    return "10X98765432"[total % 11] == bare[17].upper()


def _fr(bare: str) -> bool:
    number = int(bare[:13].replace("A", "0").replace("B", "0"))
    number -= 1_000_000 if bare[6] == "A" else 2_000_000 if bare[6] == "B" else 0
    return 97 - number % 97 == int(bare[13:])


def _gb(bare: str) -> bool:
    return bare[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


_RULES = {"us": _us, "br": _br, "es": _es, "cn": _cn, "fr": _fr, "gb": _gb}
