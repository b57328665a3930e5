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


def interval(verdict: dict[str, Any]) -> str:
    """
    >>> interval({"interval": [0.011, 0.034], "unit": "%"})
    '1.10 to 3.40 %'
    """
    if not (ends := verdict.get("interval")):
        return ""
    low, high = (number(end, verdict["unit"]) for end in ends)
    return f"{low.removesuffix(' %')} to {high}"


def p_value(verdict: dict[str, Any]) -> str:
    """
    >>> p_value({"p": 0.00004}), p_value({"p": 0.0314}), p_value({})
    ('< 0.0001', '0.031', '')
    """
    p = verdict.get("p")
    return "" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def lines(summary: dict[str, Any]) -> list[str]:
    """A summary for the person at the terminal."""
    head = f"{summary['experiment']}: {summary['paper']}"
    text = [head, f"preset {summary['preset']}: {summary['cut'] or 'nothing is cut'}"]
    for verdict in summary["verdicts"]:
        paper = "" if verdict["paper"] is None else f"paper {number(verdict['paper'], verdict['unit'])}, "
        seeds = f"{verdict['seeds']} seed{'s' if verdict['seeds'] != 1 else ''}"
        tested = f", 95 % {interval(verdict)}, p {p_value(verdict)}" if interval(verdict) else ""
        said = [verdict["verdict"], verdict["note"], verdict["reason"]]
        text.append(f"  {verdict['claim']}:")
        text.append(f"      {paper}ours {measured(verdict)} ({seeds}{tested}): {'; '.join(filter(None, said))}")
    return text
