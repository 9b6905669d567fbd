"""A page of SVG text: boxes, arrows, bars and words, readable in a light and a dark window.

Used by ``draw_path.py`` and ``draw_plots.py``. A page has a background of its own, so it stays readable where the
surrounding theme and the system's disagree. It names no font file and requests nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """\
.card{fill:#fff;stroke:#d0d7de}
.box{fill:#f6f8fa;stroke:#d0d7de}
.core{fill:#ddf4ff;stroke:#54aeff}
.grid{stroke:#d0d7de;stroke-width:1}
.line{stroke:#57606a;stroke-width:1.6;fill:none}
.tip{fill:#57606a}
.s0{fill:#0969da}.s1{fill:#bf8700}.s2{fill:#8250df}.s3{fill:#1a7f37}.s4{fill:#cf222e}.s5{fill:#6e7781}
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:13px;fill:#1f2328}
.title{font-size:16px;font-weight:600}
.head{font-weight:600}
.note{font-size:12px;fill:#57606a}
.code{font-family:ui-monospace,SFMono-Regular,"DejaVu Sans Mono",monospace;font-size:12px}
@media (prefers-color-scheme:dark){
.card{fill:#0d1117;stroke:#30363d}
.box{fill:#161b22;stroke:#30363d}
.core{fill:#0c2d6b;stroke:#388bfd}
.grid{stroke:#30363d}
.line{stroke:#8b949e}
.tip{fill:#8b949e}
.s0{fill:#58a6ff}.s1{fill:#d29922}.s2{fill:#bc8cff}.s3{fill:#3fb950}.s4{fill:#ff7b72}.s5{fill:#8b949e}
text{fill:#e6edf3}
.note{fill:#8b949e}
}"""


class Page:
    """Collects shapes; ``text()`` returns the file."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        """Begin an empty page; title and description are for readers who cannot see it."""
        self._shapes: list[str] = []
        self._head = (width, height, title, description)

    def box(self, x: float, y: float, width: float, height: float, style: str = "box") -> None:
        """Draw a rounded rectangle."""
        self._shapes.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')

    def bar(self, x: float, y: float, width: float, height: float, series: int) -> None:
        """Draw a bar in the colour of a series."""
        self._shapes.append(
            f'<rect class="s{series}" x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="2"/>'
        )

    def dot(self, x: float, y: float, series: int) -> None:
        """Draw a point in the colour of a series."""
        self._shapes.append(f'<circle class="s{series}" cx="{x:.1f}" cy="{y:g}" r="4.5"/>')

    def words(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Write one line."""
        kind = f' class="{style}"' if style else ""
        side = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._shapes.append(f'<text{kind} x="{x:.1f}" y="{y:g}"{side}>{escape(text, quote=False)}</text>')

    def line(self, points: Sequence[tuple[float, float]], style: str = "line") -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.1f},{y:g}" for x, y in points)
        self._shapes.append(f'<polyline class="{style}" points="{path}"/>')

    def arrow(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line with a tip at its last point; its last stretch is level or upright."""
        self.line(points)
        (x0, y0), (x, y) = points[-2:]
        if y0 == y:
            back = 8 if x > x0 else -8
            corners = [(x, y), (x - back, y - 4.5), (x - back, y + 4.5)]
        else:
            back = 8 if y > y0 else -8
            corners = [(x, y), (x - 4.5, y - back), (x + 4.5, y - back)]
        path = " ".join(f"{px:g},{py:g}" for px, py in corners)
        self._shapes.append(f'<polygon class="tip" points="{path}"/>')

    def text(self) -> str:
        """Return the whole file."""
        width, height, title, description = self._head
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" aria-labelledby="title description">',
                f'<title id="title">{escape(title)}</title>',
                f'<desc id="description">{escape(description)}</desc>',
                f"<style>\n{_STYLE}\n</style>",
                f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
                *self._shapes,
                "</svg>",
                "",
            ]
        )
