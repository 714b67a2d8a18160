import pytest

from nbllm.errors import NbllmError, UsageError, did_you_mean


def test_line_says_what_was_wrong_what_was_received_and_what_to_type() -> None:
    error = UsageError("--steps takes a whole number", received="ten", next="Type --steps 10")
    assert str(error) == "--steps takes a whole number (received 'ten'). Type --steps 10."


def test_line_is_one_line_whatever_was_received() -> None:
    error = NbllmError("bad\nvalue", received="x\n" * 500, next="a\nb")
    assert "\n" not in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("typed", "hint"), [("tempratur", "Did you mean temperature?"), ("zzz", "Known: temperature, top_p")]
)
def test_nearest_name(typed: str, hint: str) -> None:
    assert did_you_mean(typed, ["top_p", "temperature"]) == hint


def test_shows_as_one_line_in_ipython() -> None:
    assert UsageError("No", next="Yes")._render_traceback_() == ["UsageError: No. Yes."]
