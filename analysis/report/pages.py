"""The HTML page: content from ``tables`` and ``story``, figures as embedded PNGs, one template."""

from __future__ import annotations

import base64
import io
from importlib import resources
from typing import TYPE_CHECKING, Any

from analysis.plots.gallery import GALLERY
from analysis.report import story, tables
from analysis.smoothed import ranked_by
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 160


def render(sweep: Sweep) -> str:
    """The whole page; nothing in it is loaded from anywhere else.

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    from jinja2 import Environment, StrictUndefined

    source = (resources.files("analysis.report") / "page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    figures, left_out = _figures(sweep)
    return environment.from_string(source).render(
        name=sweep.name,
        asked=story.asked(sweep),
        found=story.found(sweep),
        warnings=sweep.warnings,
        space=tables.space(sweep),
        leaderboard=tables.leading(sweep),
        ranked_by=ranked_by(sweep),
        figures=figures,
        left_out=left_out,
        failures=tables.failures(sweep),
        hacked=tables.hacked(sweep),
        bill=tables.bill(sweep),
        checklist=tables.checklist(sweep),
    )


def _figures(sweep: Sweep) -> tuple[list[dict[str, Any]], list[str]]:
    """The plots that have something to show, and what the others say instead."""
    figures, left_out = [], []
    for exhibit in GALLERY:
        for place, (title, view) in enumerate(exhibit.views(sweep)):
            figure = exhibit.plot(view)
            if not figure.axes:
                told = figure.texts[0].get_text() if figure.texts else "nothing to show"
                left_out.append(_named_once(title, told.removeprefix(f"{sweep.name}: ")))
                continue
            name = f"{exhibit.name}-{place + 1}" if place else exhibit.name
            figures.append(_shown(figure, name, title, exhibit.caption))
    return figures, left_out


def _named_once(title: str, told: str) -> str:
    """Why a plot is left out, after its title, where it does not begin with that itself."""
    return told if told.lower().startswith(title.lower()) else f"{title}: {told}"


def _shown(figure: Figure, name: str, title: str, caption: str) -> dict[str, Any]:
    width, height = figure.get_size_inches()
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "source": _embedded(figure),
        "width": round(width * _DPI),
        "height": round(height * _DPI),
    }


def _embedded(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
