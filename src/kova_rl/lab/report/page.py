"""The page: one file with its figures, styles and script in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import kova_rl
from kova_rl.lab import coverage
from kova_rl.lab.report import html
from kova_rl.lab.report.groups import Group, family
from kova_rl.lab.report.groups import title as title_of
from kova_rl.lab.report.html import Cell, dotted, number, text, variable
from kova_rl.lab.report.reading import RunRecord
from kova_rl.lab.report.summary import CHOSEN, EVERYWHERE, Final, Improvement, Overhead, best

__all__ = ["page"]

HERE = Path(__file__).parent


Colours = Mapping[tuple[str, str], str]
"""By algorithm and label."""


def _colours(groups: Sequence[Group]) -> dict[tuple[str, str], str]:
    """As in the learning curves, where the settings of a critic have colours in turn."""
    out: dict[tuple[str, str], str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for g in groups:
        if (g.algorithm, g.label) not in out:
            out[g.algorithm, g.label] = variable(g.critic, seen[g.algorithm, family(g.critic)])
            seen[g.algorithm, family(g.critic)] += 1
    return out


def _finals(finals: Sequence[Final], colours: Colours) -> str:
    heads = ("environment", "algorithm", "critic", "mean", "std", "IQM", "95% low", "high", "seeds", "steps")
    cells: list[list[Cell]] = []
    for row in finals:
        g = row.group
        cells.append(
            [text(g.environment), text(g.algorithm), dotted(g.label, colours[g.algorithm, g.label])]
            + [number(x, g.measure.form) for x in (row.mean, row.std, row.iqm, row.low, row.high)]
            + [number(len(g.final), "d"), number(g.steps, ",d"), number(g.seconds)]
            + [number(g.count("failed"), "d")]
        )
    note = coverage.note([len(row.group.final) for row in finals])
    about = " ".join(dict.fromkeys(row.group.measure.about for row in finals))
    return f"""<p>At the end of the run. {escape(about)} Mean and sample standard deviation
over the seeds. IQM: their interquartile mean, with a 95% bootstrap interval.
{note}</p>
{html.rows("finals", (*heads, "seconds", "failed"), cells, "settings")}{_best(finals, colours)}"""


def _best(finals: Sequence[Final], colours: Colours) -> str:
    """Nothing if no critic has several settings."""
    cells = []
    for row in best(finals):
        g, second = row.first.group, row.second
        colour = colours[g.algorithm, g.label]
        cells.append(
            [text(g.environment), text(g.algorithm), dotted(g.critic, colour), text(_setting(g))]
            + [number(x, g.measure.form) for x in (row.first.iqm, row.first.low, row.first.high)]
            + [text(_setting(second.group)), number(second.iqm, g.measure.form), number(len(g.final), "d")]
            + [number(row.tried, "d")]
        )
    if not cells:
        return ""
    heads = ("environment", "algorithm", "critic", "best setting", "IQM", "95% low", "high")
    table = html.rows("best", (*heads, "second best", "its IQM", "seeds", "settings"), cells, "choices")
    return f"<h3>Best settings</h3><p>{CHOSEN}</p>{table}"


def _setting(g: Group) -> str:
    return f"{g.named} {g.settings}".strip()


def _improvements(rows: Sequence[Improvement], colours: Colours) -> str:
    if not rows:
        return "<p>There is no critic beside Adam in the same algorithm and environment yet.</p>"
    cells = [
        (
            text(r.algorithm),
            dotted(r.label, colours[r.algorithm, r.label]),
            text(r.where),
            number(r.probability, ".2f"),
            (r.span.strip(), number(r.low)[1], "number"),
            number(r.seeds, "d"),
            number(r.failed, "d"),
        )
        for r in rows
    ]
    heads = ("algorithm", "critic", "environment", "P(better than Adam)", "95% interval", "seeds", "failed")
    return html.rows("improvements", heads, cells, "comparisons")


def _overheads(rows: Sequence[Overhead], colours: Colours) -> str:
    if not rows:
        return "<p>There is no critic beside Adam whose time could be compared yet.</p>"
    forms = (",.3f", ",.3f", "+,.0f", "+d")
    cells = [
        [text(g.algorithm), dotted(g.label, colours[g.algorithm, g.label]), text(g.environment)]
        + [
            number(x, form)
            for x, form in zip((r.milliseconds, r.adam, r.percent, r.paper), forms, strict=True)
        ]
        for r in rows
        for g in [r.group]
    ]
    heads = (
        "algorithm",
        "critic",
        "environment",
        "processor ms a step",
        "Adam's",
        "over Adam, %",
        "KOVA in the paper, %",
    )
    return html.rows("overheads", heads, cells, "comparisons")


def _failed(runs: Sequence[RunRecord]) -> str:
    failed = [run for run in runs if run.status == "failed"]
    unfinished = [run for run in runs if run.status == "unfinished"]
    parts = ["" if failed else "<p>No run failed.</p>"]
    for run in failed:
        message, tries = str(run.failure.get("message", "")), run.failure.get("attempts", "?")
        parts.append(
            f'<details><summary><span class="failed">{escape(run.name)}</span>: {escape(message)} '
            f'<span class="soft">(tries: {escape(str(tries))})</span></summary>'
            f"<pre>{escape(str(run.failure.get('log', '')))}</pre></details>"
        )
    if unfinished:
        reached = "".join(
            f"<li>{escape(run.name)}: step {run.reached:,} of {run.config['steps']:,}</li>"
            for run in unfinished
        )
        parts.append(f"<h3>Not finished: {len(unfinished)}</h3><ul>{reached}</ul>")
    return "\n".join(parts)


def _runs(runs: Sequence[RunRecord], made: Sequence[str]) -> str:
    heads = ("run", "status", "environment", "algorithm", "critic", "seed", "final", "seconds")
    cells = [
        (
            text(r.name),
            text(r.status, "failed" if r.status == "failed" else ""),
            text(r.environment),
            text(r.algorithm),
            dotted(r.critic, variable(r.critic)),
            number(r.seed, "d"),
            number(r.final, r.measure.form),
            number(r.seconds),
        )
        for r in runs
    ]
    listed = "".join(f"<pre>{escape(command)}</pre>" for command in made)
    by = f"<p>The runs were made by</p>{listed}" if made else ""
    table = html.rows("runs", heads, cells, "runs")
    return f"{by}<details><summary>List of {len(runs)} runs</summary>{table}</details>"


def _measures(groups: Sequence[Group]) -> str:
    return " and ".join(dict.fromkeys(f"{g.measure.title}s" for g in groups))


def _once(row: Improvement) -> str:
    """How a comparison of single runs came out; it has no probability to speak of."""
    better, worse = row.measure.better
    if row.environments == 1:
        ends = {1.0: f"{better} Adam", 0.0: f"{worse} Adam"}
        return f"ended {ends.get(row.probability, 'as Adam did')}"
    count = f"{row.probability * row.environments:g} of {row.environments}"
    return f"ended {better} Adam in {count} environments"


def _headline(rows: Sequence[Improvement]) -> str:
    """In a sentence for each algorithm, how KOVA compares."""
    said = []
    for row in rows:
        alone = row.environments == 1 and not any(
            (r.algorithm, r.label, r.environment) == (row.algorithm, row.label, EVERYWHERE) for r in rows
        )
        if row.critic == "kova" and (row.environment == EVERYWHERE or alone):
            seeds = "1 seed" if row.seeds == 1 else f"{row.seeds} seeds"
            if row.failed:
                seeds += f", {row.failed} failed {'run' if row.failed == 1 else 'runs'} left out"
            where = f"({escape(row.where)}, {seeds})"
            ends = f"ends {row.measure.better[0]} Adam with probability"
            found = f"{ends} <b>{row.probability:.2f}</b>{row.span} {where}."
            if row.seeds == 1:
                found = f"{_once(row)} {where}. One seed cannot tell a difference from chance: run several."
            said.append(f"<li>{escape(title_of(row.algorithm))}, {escape(row.label)}: {found}</li>")
    return f"<ul>{''.join(said)}</ul>" if said else ""


def page(
    title: str,
    runs: Sequence[RunRecord],
    groups: Sequence[Group],
    tables: tuple[Sequence[Final], Sequence[Improvement], Sequence[Overhead]],
    figures: Mapping[str, str],
    commands: Sequence[str],
) -> str:
    """The whole page.

    Args:
        title: Of the page.
        runs: All that were read.
        groups: Of these runs.
        tables: Rows of the three tables.
        figures: Of each section (``curves``, ``policy``, ``improvement``, ``environments``, ``times``), as
            HTML.
        commands: The one that made the page, then those that made the runs, if known.
    """
    finals, improvements, overheads = tables
    colours = _colours(groups)
    sections = {
        "finals": (f"Final {_measures(groups)}", _finals(finals, colours)),
        "curves": ("Learning curves", figures["curves"]),
        "policy": ("Critic and policy", figures["policy"]),
        "improvement": ("Improvement on Adam", figures["improvement"] + _improvements(improvements, colours)),
        "environments": ("Over environments", figures["environments"]),
        "times": ("Running times", figures["times"] + _overheads(overheads, colours)),
        "failures": ("Failed and unfinished runs", _failed(runs)),
        "all": ("All runs", _runs(runs, commands[1:])),
    }
    counts = "".join(
        f'<li class="{"bad" if status == "failed" and count else ""}"><b>{count}</b>{status}</li>'
        for status in ("done", "failed", "unfinished")
        for count in [sum(run.status == status for run in runs)]
    )
    links = "".join(f'<a href="#section-{name}">{head}</a>' for name, (head, _) in sections.items())
    body = "\n".join(
        f'<section id="section-{name}" aria-labelledby="{name}-head"><h2 id="{name}-head">{head}</h2>'
        f"{inner}</section>"
        for name, (head, inner) in sections.items()
    )
    css, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{css}</style></head><body>
<header><h1>{escape(title)}</h1>
<p class="soft">{len(groups)} settings, kova-rl {escape(kova_rl.__version__)}.
Made by <code>{escape(commands[0])}</code></p>
<ul class="counts">{counts}</ul>{_headline(improvements)}<nav aria-label="Sections">{links}</nav></header>
<main>{body}</main><script>{script}</script></body></html>
"""
