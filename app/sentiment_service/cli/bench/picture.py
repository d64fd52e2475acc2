"""Draws latencies by the rate of requests, as SVG."""

from collections.abc import Iterator, Sequence

from sentiment_service.cli.bench.report import Curves, texts
from sentiment_service.cli.bench.search import Step, best

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 260, 56, 40, 44  # pixels of a panel, and its margins
CEILING = 2.0  # times the goal; what is above is drawn at the edge
LINES = 4  # of the grid, in each direction
COLOURS = {"p50": "#2a6f4e", "p95": "#2f6db5", "p99": "#b5442f"}


def svg(curves: Curves, goal_ms: float) -> str:
    """A panel for each number of texts per request, one below the other."""
    size = f'width="{WIDTH}" height="{HEIGHT * len(curves)}" font-family="sans-serif"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (count, steps) in enumerate(curves.items()):
        lines.append(f'<g transform="translate(0,{number * HEIGHT})">')
        lines += [*_panel(count, steps, goal_ms), "</g>"]
    return "\n".join((*lines, "</svg>\n"))


def _panel(count: int, steps: Sequence[Step], goal_ms: float) -> Iterator[str]:
    steps = sorted(
        (step for step in steps if step.answered), key=lambda step: (step.rate, step.p99_ms)
    )
    most = max((step.rate for step in steps), default=1.0) * 1.05
    unit = float(f"{most / (LINES + 0.5):.1g}")  # one digit, so that numbers are round
    right, bottom = WIDTH - 24, HEIGHT - BOTTOM

    def x(rate: float) -> float:
        return LEFT + (right - LEFT) * rate / most

    def y(ms: float) -> float:
        return bottom - (bottom - TOP) * min(ms / (goal_ms * CEILING), 1.0)

    found = best(steps)
    title = f"{texts(count)} a request"
    if found:
        title += f": {found.rate:,.0f} requests/s within {goal_ms:g} ms"
    yield _text(LEFT, 20, title, 'font-size="14"')
    for number in range(LINES + 1):
        ms, rate = goal_ms * CEILING * number / LINES, number * unit
        yield _line(LEFT, y(ms), right, y(ms), "#ddd")
        yield _text(LEFT - 6, y(ms) + 4, f"{ms:g}", 'text-anchor="end"')
        if rate <= most:
            yield _text(x(rate), bottom + 16, f"{rate:,.0f}", 'text-anchor="middle"')
    yield _text((LEFT + right) / 2, bottom + 34, "requests/s", 'text-anchor="middle"')
    yield _text(LEFT - 6, TOP - 8, "ms", 'text-anchor="end"')
    yield _line(LEFT, y(goal_ms), right, y(goal_ms), "black", 'stroke-dasharray="5 4"')
    if found:
        yield _line(x(found.rate), TOP, x(found.rate), bottom, "#999", 'stroke-dasharray="2 3"')
    for number, (name, colour) in enumerate(COLOURS.items()):
        places = [(x(step.rate), y(getattr(step, f"{name}_ms"))) for step in steps]
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for step, (left, top) in zip(steps, places, strict=True):
            circle = f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" stroke="{colour}"'
            yield f'{circle} fill="{"white" if step.fault else colour}"/>'
        yield _text(right - 120 + 44 * number, 20, name, f'fill="{colour}"')


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'


def _text(x: float, y: float, text: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{text}</text>'
