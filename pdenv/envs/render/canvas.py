"""A drawing surface: shapes by matplotlib's Agg renderer, text by Pillow, both anti-aliased and without a window.

Coordinates are points of a page of `WIDTH` × `HEIGHT`, from the top left corner down.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 1280, 720  # points

Align = Literal["left", "middle", "right"]

_ROUND = 0.5523  # Bézier handle of a quarter circle
_ARC = (Path.LINETO, *(Path.CURVE4,) * 3)
_ROUNDED_CODES = np.array([Path.MOVETO, *_ARC * 4, Path.CLOSEPOLY], np.uint8)


class Box(NamedTuple):
    """A rectangle on the page, points."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        """Its height on the page, half way down."""
        return self.y + self.height / 2

    def inner(self, dx: float, dy: float) -> Box:
        return Box(self.x + dx, self.y + dy, self.width - 2 * dx, self.height - 2 * dy)


@lru_cache(maxsize=64)
def _font(pixels: int, bold: bool) -> ImageFont.FreeTypeFont:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = f"{matplotlib.get_data_path()}/fonts/ttf/{name}"
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)


class Canvas:
    """One page. Draw shapes and text in any order; `pixels` puts all text on top.

    Args:
        scale: pixels a point.

    Attributes:
        texts: text drawn so far, each with the box that it covers.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.texts: list[tuple[str, Box]] = []
        self._calls: list[tuple[tuple[float, float], str, ImageFont.FreeTypeFont, str]] = []
        self._renderer = RendererAgg(round(WIDTH * scale), round(HEIGHT * scale), 72.0 * scale)
        self._to_pixels = Affine2D().scale(scale, -scale).translate(0.0, round(HEIGHT * scale))

    def _draw(self, path: Path, fill: str | None, line: str | None, width: float, alpha: float, dashes: bool) -> None:
        gc = self._renderer.new_gc()
        gc.set_alpha(alpha)
        gc.set_snap(False)
        gc.set_linewidth(width if line else 0.0)
        if line:
            gc.set_foreground(line)
            gc.set_capstyle("butt" if dashes else "round")
            gc.set_joinstyle("round")
            if dashes:
                gc.set_dashes(0.0, [5.0, 3.5])
        face = (*to_rgb(fill), alpha) if fill else None
        self._renderer.draw_path(gc, path, self._to_pixels, face)

    def rectangle(
        self, box: Box, fill: str | None = None, line: str | None = None, radius: float = 0.0, width: float = 1.0
    ) -> None:
        """A rectangle, with rounded corners where a radius is given."""
        if box.width <= 0.0 or box.height <= 0.0:
            return
        r = min(radius, box.width / 2, box.height / 2)
        self._draw(_rounded(box, r), fill, line, width, 1.0, False)

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        self._draw(Path(points), None, colour, width, 1.0, False)

    def circle(self, x: float, y: float, radius: float, fill: str) -> None:
        self.rectangle(Box(x - radius, y - radius, 2 * radius, 2 * radius), fill, radius=radius)

    def curve(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        colour: str,
        width: float,
        alpha: float = 1.0,
        dashes: bool = False,
    ) -> None:
        """A curve from left to right that leaves and arrives level."""
        middle = (start[0] + end[0]) / 2
        points = [start, (middle, start[1]), (middle, end[1]), end]
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        self._draw(Path(points, codes), None, colour, width, alpha, dashes)

    def triangle(self, x: float, y: float, size: float, fill: str) -> None:
        """An arrow head whose tip, at (x, y), points to the right."""
        points = [(x - size, y - size * 0.6), (x, y), (x - size, y + size * 0.6), (x - size, y - size * 0.6)]
        self._draw(Path(points, closed=True), fill, None, 0.0, 1.0, False)

    def bar(self, box: Box, parts: list[tuple[float, str]], ground: str, radius: float = 2.0) -> None:
        """A bar filled from the left by parts, each a share of its width and a colour."""
        self.rectangle(box, ground, radius=radius)
        x = box.x
        for share, colour in parts:
            width = min(max(share, 0.0) * box.width, box.right - x)
            if width > 0.2:
                self.rectangle(Box(x, box.y, width, box.height), colour, radius=min(radius, width / 2))
                x += width

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """Points that the text takes on one line."""
        return _font(round(size * self.scale), bold).getlength(text) / self.scale

    def fitted(self, text: str, size: float, room: float, bold: bool = False) -> str:
        """The text, cut with an ellipsis where it is wider than `room` points."""
        kept = text
        while kept and self.width(text, size, bold) > room:
            kept = kept[:-1].rstrip()
            text = f"{kept}…"
        return text if kept else ""

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: str,
        bold: bool = False,
        align: Align = "left",
        room: float = math.inf,
    ) -> float:
        """Text with its base line at y, cut to `room` points; returns its width."""
        text = self.fitted(text, size, room, bold)
        if not text:
            return 0.0
        width = self.width(text, size, bold)
        left = {"left": x, "middle": x - width / 2, "right": x - width}[align]
        self.texts.append((text, Box(left, y - 0.76 * size, width, 0.98 * size)))
        at = (round(left * self.scale), round(y * self.scale))
        self._calls.append((at, text, _font(round(size * self.scale), bold), colour))
        return width

    def pixels(self) -> np.ndarray:
        """(HEIGHT·scale, WIDTH·scale, 3) uint8."""
        image = Image.fromarray(np.asarray(self._renderer.buffer_rgba())[..., :3].copy())
        draw = ImageDraw.Draw(image)
        for at, text, font, colour in self._calls:
            draw.text(at, text, font=font, fill=colour, anchor="ls")
        return np.array(image)


def _rounded(box: Box, r: float) -> Path:
    """The outline of a rectangle whose corners are quarter circles of radius r."""
    x, y, right, bottom = box.x, box.y, box.right, box.bottom
    if r <= 0.0:
        corners = [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]
        return Path(corners, [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY])
    h = r * (1.0 - _ROUND)
    points = [
        (x + r, y),
        *((right - r, y), (right - h, y), (right, y + h), (right, y + r)),
        *((right, bottom - r), (right, bottom - h), (right - h, bottom), (right - r, bottom)),
        *((x + r, bottom), (x + h, bottom), (x, bottom - h), (x, bottom - r)),
        *((x, y + r), (x, y + h), (x + h, y), (x + r, y)),
        (x + r, y),
    ]
    return Path(points, _ROUNDED_CODES)
