"""A row of tabs that the keyboard reaches: JupyterLab keeps Enter and Space from the tabs that ipywidgets draws.

Knows titles and which is chosen, nothing of what the tabs hold.
"""

from __future__ import annotations

import anywidget
import traitlets

from nbllm.panels import source


class TabBar(anywidget.AnyWidget):
    """The row; whoever makes it observes `chosen`."""

    _esm = source.module("tab_bar")
    _css = source.style()

    titles = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """What the tabs say."""
    chosen = traitlets.Int(0).tag(sync=True)
    """The place in `titles` of the open tab."""
