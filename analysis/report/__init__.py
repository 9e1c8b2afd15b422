"""One self-contained HTML page of a sweep: what was asked, what was found, and how far to believe it."""

from __future__ import annotations

from pathlib import Path

from analysis.files import replacing
from analysis.report.pages import render
from analysis.report.pdf import print_pdf
from analysis.sweep import Sweep

__all__ = ["print_pdf", "render", "write_report"]


def write_report(sweep: Sweep, path: str | Path, pdf: bool = False) -> list[Path]:
    """Write the report of a sweep, atomically.

    Args:
        sweep: A loaded sweep, finished or not.
        path: The HTML file; folders are made as needed.
        pdf: Print it to a PDF beside it too, with the Chromium that is installed.

    Returns:
        The files that were written.

    Raises:
        ConfigError: ``sweep.json`` states no objective, or there is no Chromium for the PDF.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as draft:
        draft.write_text(render(sweep), encoding="utf-8")
    return [target, print_pdf(target)] if pdf else [target]
