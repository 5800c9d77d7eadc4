"""A scene as pixels, and as a window of its own."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import numpy as np

from pdenv.envs.render import style
from pdenv.envs.render.canvas import HEIGHT, WIDTH, Box, Canvas
from pdenv.envs.render.instances import draw_flows, draw_instances, draw_racks
from pdenv.envs.render.layout import arrange
from pdenv.envs.render.panels import draw_gateway, draw_header, draw_legend, draw_metrics
from pdenv.envs.render.scene import Scene


class Picture:
    """Draws scenes; equal scenes give equal pixels.

    Args:
        scale: pixels a point; 1 gives 1280 × 720.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def draw(self, scene: Scene) -> np.ndarray:
        """(720·scale, 1280·scale, 3) uint8."""
        return paint(scene, self.scale).pixels()


def paint(scene: Scene, scale: float = 1.0) -> Canvas:
    """A scene on a page."""
    canvas = Canvas(scale)
    layout = arrange(scene)
    canvas.rectangle(Box(0, 0, WIDTH, HEIGHT), style.PAGE)
    draw_header(canvas, scene)
    draw_gateway(canvas, scene)
    draw_racks(canvas, scene, layout)
    draw_flows(canvas, scene, layout)
    draw_instances(canvas, scene, layout)
    draw_legend(canvas, scene, layout)
    draw_metrics(canvas, scene)
    return canvas


# ---- a window --------------------------------------------------------------------------------------

#: GUI backends of matplotlib, in the order in which they are tried.
BACKENDS = ("qtagg", "tkagg", "gtk4agg", "gtk3agg", "wxagg")


class Window:
    """A window of its own that shows scenes; without a display, or a GUI toolkit, it shows nothing.

    It stands beside whatever the user does with pyplot, and leaves the backend and the rcParams as they are. Once
    the user has closed the window it stays closed. A copy, or what is unpickled, is a window not yet opened.
    """

    def __init__(self) -> None:
        self._picture = Picture()
        self._manager: Any = None
        self._image: Any = None
        self._open = True  # nobody has closed it

    def __reduce__(self) -> tuple[type[Window], tuple[()]]:
        return Window, ()

    @property
    def visible(self) -> bool:
        return self._manager is not None

    def show(self, scene: Scene) -> None:
        """Show the scene now, and handle what the user did to the window."""
        if not self._open:
            return
        if self._manager is None:
            self._start()
        if self._manager is None:
            self._open = False
            return
        self._image.set_data(self._picture.draw(scene))
        self._manager.canvas.draw()
        self._manager.canvas.flush_events()

    def close(self) -> None:
        """Close the window; nothing is shown after that."""
        manager, self._manager, self._image, self._open = self._manager, None, None, False
        if manager is not None:
            manager.destroy()

    def _start(self) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        self._image = axes.imshow(np.full((HEIGHT, WIDTH, 3), 255, np.uint8), aspect="equal")
        self._manager = _window_of(figure)
        if self._manager is not None:
            self._manager.set_window_title("pdenv")
            self._manager.canvas.mpl_connect("close_event", lambda _: self._forget())
            self._manager.show()

    def _forget(self) -> None:
        self._manager, self._image, self._open = None, None, False


def _backends() -> tuple[str, ...]:
    """Backends to try: none without a display, and only the one that the user asks for by MPLBACKEND."""
    asked = os.environ.get("MPLBACKEND", "").lower()
    if asked:
        return (asked,) if asked in (*BACKENDS, "macosx") else ()
    if sys.platform == "darwin":
        return ("macosx", *BACKENDS)
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    there = sys.platform == "win32" or any(os.environ.get(name) for name in displays)
    return BACKENDS if there else ()


def _window_of(figure: Any) -> Any:
    """A figure manager of the first backend that works; None if none does."""
    for name in _backends():
        try:
            backend = importlib.import_module(f"matplotlib.backends.backend_{name}")
            return backend.FigureCanvas.new_manager(figure, 1)
        except Exception:  # whatever a toolkit raises when it is absent or cannot reach a display
            continue
    return None
