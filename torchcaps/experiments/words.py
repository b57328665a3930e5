"""Numbers and verdicts as text, for the terminal and for the page of results."""

from typing import Any


def number(value: float | None, unit: str) -> str:
    """
    >>> number(0.0025, "%"), number(1e-5, ""), number(None, "")
    ('0.25 %', '1e-05', '-')
    """
    if value is None:
        return "-"
    return f"{100 * value:.2f} %" if unit == "%" else f"{value:.3g}"


def measured(verdict: dict[str, Any]) -> str:
    """Mean and spread of a verdict of a summary."""
    ours, spread, unit = verdict["ours"], verdict["spread"], verdict["unit"]
    if ours is None or spread is None:
        return number(ours, unit)
    return f"{number(ours, unit).removesuffix(' %')} ± {number(spread, unit)}"


def lines(summary: dict[str, Any]) -> list[str]:
    """A summary for the person at the terminal."""
    head = f"{summary['experiment']}: {summary['paper']}"
    text = [head, f"preset {summary['preset']}: {summary['cut'] or 'the published protocol'}"]
    for verdict in summary["verdicts"]:
        paper = "" if verdict["paper"] is None else f"paper {number(verdict['paper'], verdict['unit'])}, "
        seeds = f"{verdict['seeds']} seed{'s' if verdict['seeds'] != 1 else ''}"
        note = f"; {verdict['note']}" if verdict["note"] else ""
        text.append(f"  {verdict['claim']}:")
        text.append(f"      {paper}ours {measured(verdict)} ({seeds}): {verdict['verdict']}{note}")
    return text
