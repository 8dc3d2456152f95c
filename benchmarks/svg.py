"""Line charts as small SVG files, without a library: readable on a light page and on a dark one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 52
COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c", "#9467bd", "#8c564b", "#c23b80")
GREY = "#888"


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """From values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        low, high, value = (self._bent(each) for each in (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1) * (self.end - self.start)

    def _bent(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
            inside = [tick for tick in found if self.low <= tick <= self.high]
            return inside if len(inside) < 10 else [tick for tick in inside if f"{tick:e}"[0] == "1"]
        step = 10 ** math.floor(math.log10(self.high or 1))
        step = next(step / part for part in (1, 2, 5, 10) if self.high / (step / part) >= 4)
        return [step * count for count in range(math.floor(self.high / step) + 1)]


def chart(title: str, across: str, up: str, lines: Sequence[Line], *, logarithmic: bool = False) -> str:
    """`logarithmic`: of both axes."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_scale = Scale(min(xs) if logarithmic else 0, max(xs), LEFT, WIDTH - RIGHT, logarithmic)
    y_scale = Scale(min(ys) if logarithmic else 0, max(ys) * 1.05, HEIGHT - BOTTOM, TOP, logarithmic)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{GREY}">',
        _text(WIDTH / 2, 20, title, anchor="middle", size=15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, anchor="middle"),
        _text(LEFT - 6, TOP - 10, up),
        *_axes(x_scale, y_scale),
    ]
    for index, line in enumerate(lines):
        parts += _drawn(line, COLOURS[index % len(COLOURS)], x_scale, y_scale)
        parts.append(_text(LEFT + 10, TOP + 16 + 16 * index, line.name, colour=COLOURS[index % len(COLOURS)]))
    return "\n".join([*parts, "</svg>\n"])


def _axes(x_scale: Scale, y_scale: Scale) -> list[str]:
    parts = []
    for tick in x_scale.ticks():
        x = x_scale(tick)
        parts.append(_rule(x, TOP, x, HEIGHT - BOTTOM))
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{tick:g}", anchor="middle"))
    for tick in y_scale.ticks():
        y = y_scale(tick)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y))
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    return parts


def _drawn(line: Line, colour: str, x_scale: Scale, y_scale: Scale) -> list[str]:
    places = [(x_scale(x), y_scale(y)) for x, y in sorted(line.points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{GREY}" stroke-opacity="0.25"/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = GREY
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(words)}</text>"
    )
