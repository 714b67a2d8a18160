"""The static face of a panel: an output of its own that stays in the saved notebook and shows without a kernel.

It is displayed under its own display id, so that the kernel can bring it up to date; the living widget hides it (by the
class `nbllm-face-ID`) for as long as it is on the page itself. Knows nothing of what a face says.
"""

from __future__ import annotations

import contextlib
import html
import re
import uuid
from dataclasses import dataclass, field

from nbllm.panels import source
from nbllm.plain import harmless

_ORPHAN = (
    # where the widget's model is gone, JupyterLab writes an error in its place; the face says more
    ".jp-OutputArea-child:has(.jupyter-widgets:not(:has(*))):has(+ .jp-OutputArea-child .nbllm-face){display:none}"
)


@dataclass(kw_only=True)
class Face:
    """One static face in one notebook."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Its display id, and the end of its class name."""
    _shown: tuple[str, str] | None = None

    def show(self, body: str, text: str) -> None:
        """Displays the face; one that is on the page already, since a place was kept for it, is brought up to date.

        Args:
            body: HTML in which all text from data is escaped.
            text: the same in plain text.
        """
        self._publish(body, text, update=self._shown is not None)

    def update(self, body: str, text: str, *, again: bool = False) -> None:
        """Puts new content in the place of the old, where it differs or is to be sent again."""
        if again or (body, text) != self._shown:
            self._publish(body, text, update=True)

    def _publish(self, body: str, text: str, *, update: bool) -> None:
        from IPython.display import publish_display_data

        self._shown = body, text
        data = harmless({"text/html": wrap(body, self.id), "text/plain": text})
        publish_display_data(data, transient={"display_id": self.id}, update=update)


def wrap(body: str, face_id: str = "static") -> str:
    """A face's HTML with the style sheet it needs, cut down to the rules that a static face uses."""
    return f"<style>{_face_style()}{_ORPHAN}</style><div class='nbllm nbllm-face nbllm-face-{face_id}'>{body}</div>"


def chip(status: str, icon: str, kind: str) -> str:
    """A status chip: an icon and a word, so that colour isn't needed to read it."""
    return f'<span class="nbllm-chip {html.escape(kind)}">{html.escape(icon)} {html.escape(status)}</span>'


def table(head: list[str], rows: list[list[str]], summary: str) -> str:
    """A table that opens, all cells escaped."""
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<details class='nbllm-table'><summary>{html.escape(summary)}</summary>"
        f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></details>"
    )


def _face_style() -> str:
    """The part of the style sheet between the marks `static` and `end static`, without comments and line ends."""
    sheet = source.style()
    with contextlib.suppress(ValueError):
        sheet = sheet[sheet.index("/* static */") : sheet.index("/* end static */")]
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", sheet, flags=re.S)).strip()
