"""All panels of a session as tabs: each is made when its tab is first chosen, and lives until the tabs are closed.

The static faces have their places below the tabs from the start, since what a callback displays later would belong to
no cell. Knows which panels there are and how each is shown, nothing of what is in them.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets

from nbllm.errors import NbllmError
from nbllm.panels import place, registry
from nbllm.panels.face import Face, wrap
from nbllm.panels.tab_bar import TabBar

_POINTERS = ("corpus", "tokenizer", "model", "run", "adapter")


def show_tabs(session: Any, panels: Mapping[str, Callable[[], None]]) -> None:
    """Displays the tabs: the session's card first, then a tab for each panel.

    Args:
        session: whose card it is.
        panels: by name, what shows the panel; an error that it raises shows in its tab, and it is asked again when
            the tab is chosen again.
    """
    tabs = PanelTabs(session, panels)
    registry.enter("tabs", f"{id(session)}", tabs)
    place.present(tabs.widget)
    tabs.start()


class PanelTabs:
    """The tabs of one cell; `show_tabs` makes, registers and displays them."""

    def __init__(self, session: Any, panels: Mapping[str, Callable[[], None]]) -> None:
        self.session = session
        self._panels = dict(panels)
        self._faces = {name: Face() for name in panels}
        self._made: dict[str, Any] = {}
        self._card = ipywidgets.HTML()
        self._card_face = Face()
        self._places = {name: ipywidgets.VBox() for name in panels}
        self.bar = TabBar(titles=["session", *panels])
        # all stay on the page, since those that aren't open go on hiding their static faces
        self._stack = ipywidgets.VBox([self._card, *self._places.values()])
        self._stack.add_class("nbllm-tab-places")
        self._open_only(0)
        self.widget = ipywidgets.VBox([self.bar, self._stack])
        self.widget.add_class("nbllm-tabs")
        self._closed = False

    def start(self) -> None:
        """Keeps a place for each face and begins to follow the tabs and the session."""
        self._card_face.show(self.session.card()._repr_html_(), str(self.session.card()))
        for face in self._faces.values():
            face.show("", "")
        self._show_card()
        self.session.observe(self._show_card, list(_POINTERS))
        self.bar.observe(self._choose, "chosen")

    def settle(self) -> None:
        """Brings the card's face up to date; the panels in the tabs are registered themselves, and settle by
        themselves."""
        self._card_face.update(self.session.card()._repr_html_(), str(self.session.card()))

    def close(self) -> None:
        """Closes the panels in the tabs, and the tabs."""
        if self._closed:
            return
        self._closed = True
        self.session.unobserve(self._show_card, list(_POINTERS))
        registry.leave(self)
        for panel in list(self._made.values()):
            panel.close()
        for widget in (self.bar, *self._places.values(), self._card, self._stack, self.widget):
            widget.close()

    def _show_card(self, _change: object = None) -> None:
        # the face below says the same: it shows where there is no widget
        hidden = f"<style>.nbllm-face-{self._card_face.id}{{display:none}}</style>"
        self._card.value = hidden + self.session.card()._repr_html_()

    def _choose(self, change: Mapping[str, Any]) -> None:
        index = change["new"]
        self._open_only(index)
        if index:
            self._open(list(self._panels)[index - 1])
        else:
            self._show_card()

    def _open_only(self, index: int) -> None:
        for number, child in enumerate(self._stack.children):
            child.layout.display = None if number == index else "none"

    def _open(self, name: str) -> None:
        if self._made.get(name) in registry.live():  # not closed since, by the same panel in another cell
            return

        def take(panel: Any) -> None:
            panel.face = self._faces[name]
            self._made[name] = panel
            self._places[name].children = (panel,)

        try:
            with place.hosted(take):
                self._panels[name]()
        except NbllmError as error:
            note = ipywidgets.HTML(wrap(f"<div class='nbllm-body' role='status'>{html.escape(str(error))}</div>"))
            self._places[name].children = (note,)
