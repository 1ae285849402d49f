"""Sections as one HTML file that needs nothing else: its style and its script are in it, nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from functools import partial
from html import escape
from importlib.resources import files

from sweeps.report import drawing, looks, svg
from sweeps.report.answer import Answer
from sweeps.report.chart import SMALLEST, Bars, Block, Chart, Section, Table, Text, widths, written

FEW = 200  # rows of a long table that are shown at first
TINTS = {"fits": "fits", "too": "unfit", "infeasible": "unfit", "failed": "broke", "lost": "broke", "–": "none"}
WATERMARK = "SIMULATED"


def html(title: str, answer: Answer, sections: Sequence[Section], simulated: str, made: str) -> str:
    """Return the page. `simulated` is the cluster that was made up, if one was; `made` says when and by what."""
    style, script = looks.css() + _file("page.css"), _file("page.js")
    watermark = WATERMARK if simulated else ""
    says = f"Simulated on {escape(simulated)}: a model answered, nothing was measured"
    marked = f'<div class="simulated" role="note">{says}</div>' if simulated else ""
    style += _sheets(says) if simulated else ""
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections)
    body = "".join(_section(section, watermark) for section in sections)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}{" (simulated)" if simulated else ""}</title><link rel="icon" href="data:,">'
        f"<style>{style}</style></head><body>"
        f'<a class="skip" href="#top">Skip to the answer</a>'
        f'<div class="bar">{marked}<nav aria-label="Sections"><a href="#top">Answer</a>{links}</nav></div>'
        f"<main>{_answer(answer)}{body}</main><footer>{escape(made)}</footer>"
        '<div id="tip" hidden></div><div id="spoken" class="unseen" aria-live="polite"></div>'
        f"<script>{script}</script></body></html>"
    )


def _sheets(says: str) -> str:
    """Says so on every sheet of paper."""
    text = re.sub(r"[^\w ,:=.-]", " ", says)
    return f'@page{{@top-center{{content:"{text}";font:600 9pt system-ui,sans-serif;color:#6d3b00}}}}'


def _file(name: str) -> str:
    return files("sweeps.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def rich(text: str) -> str:
    """Escaped, then **strong** and `code`."""
    strong = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text).replace(" ± ", "\u00a0±\u00a0"))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", strong)


def _answer(answer: Answer) -> str:
    numbers = "".join(
        f'<div><dt>{escape(number.says)}</dt><dd><span class="value">{escape(number.value)}'
        f'<span class="unit">{escape(number.unit)}</span></span></dd>'
        f'<dd class="beside">{escape(number.beside)}</dd></div>'
        for number in answer.numbers
    )
    cares = "".join(f"<li>{rich(care)}</li>" for care in answer.cares)
    care = f'<aside class="care" aria-labelledby="care"><h2 id="care">Read with care</h2><ul>{cares}</ul></aside>'
    said = "".join(f'<p class="answer">{rich(line)}</p>' for line in answer.lines)
    return (
        f'<header id="top"><p class="kicker">{rich(answer.kicker)}</p><h1>{escape(answer.headline)}</h1>{said}'
        f'<dl class="numbers">{numbers}</dl>{care if cares else ""}</header>'
    )


def _section(section: Section, watermark: str) -> str:
    body = "".join(
        f'<div class="pair">{drawn}</div>' if is_small else drawn
        for is_small, alike in itertools.groupby(section.blocks, lambda b: isinstance(b, Chart) and b.is_small)
        for drawn in ["".join(_block(block, watermark) for block in alike)]
    )
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-h">'
        f'<h2 id="{section.name}-h">{escape(section.title)}</h2><p>{rich(section.lead)}</p>{body}</section>'
    )


def _block(block: Block | Text, watermark: str) -> str:
    match block:
        case Chart():
            return _chart(block, watermark)
        case Bars():
            return _bars(block)
        case Table():
            return _table(block)
        case Text():
            button = '<button class="copy" type="button">Copy</button>'
            return f'<div class="code"><h3>{escape(block.title)}</h3>{button}<pre>{escape(block.content)}</pre></div>'


def _chart(chart: Chart, watermark: str) -> str:
    plots = drawing.panels(chart, drawing.page_size(chart), watermark)
    drawn = "".join(
        f'<div class="panel">{f"<h4>{escape(panel.title)}</h4>" if panel.title else ""}{svg.plot(chart, panel, plot)}'
        "</div>"
        for panel, plot in zip(chart.panels, plots, strict=True)
    )
    note = f'<p class="note">{rich(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure id="{chart.name}"><figcaption><h3>{escape(chart.title)}</h3>{_legend(chart)}</figcaption>'
        f'<div class="panels of-{drawing.columns(chart)}">{drawn}</div>{note}{_data(chart)}</figure>'
    )


def _legend(chart: Chart) -> str:
    if len(chart.names) == 1:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-s="{n}">{svg.key(drawing.key(chart, name))}{escape(name)}'
        "</button>"
        for n, name in enumerate(chart.names)
    )
    says = f"<span>{escape(chart.legend)}</span>" if chart.legend else ""
    return f'<div class="legend" role="group" aria-label="Series of {escape(chart.title)}">{says}{buttons}</div>'


def _data(chart: Chart) -> str:
    """Return the same as a table, for who would rather read it; long curves are in the CSV only."""
    columns, rows = data(chart)
    if len(rows) > 400:
        return ""
    heads = "".join(f"<th scope=col>{escape(column)}" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(value)}' for value in row)}" for row in rows)
    return (
        "<details><summary>The figures</summary><div class='scroll tall'>"
        f"<table><thead><tr>{heads}<tbody>{body}</table></div></details>"
    )


def data(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Return what a chart shows, as text: a row a mark."""
    several = len(chart.panels) > 1
    heads = [*(["panel"] if several else []), chart.legend or "series", chart.x.label, chart.y.label, "from", "to"]
    named = dict(zip(chart.x.ticks, chart.x.names, strict=False))
    shown = partial(_figure, form=chart.y.form)
    rows = [
        [
            *([panel.title] if several else []),
            series.name,
            named.get(mark.x) or _figure(mark.x, chart.x.form),
            mark.says if mark.is_missing else shown(mark.y),
            shown(mark.low),
            shown(mark.high),
        ]
        for panel in chart.panels
        for series in panel.series
        if series.style != "ideal"
        for mark in series.marks
    ]
    return heads, rows


def _figure(value: float, form: str) -> str:
    if not math.isfinite(value):
        return ""
    return written(value, form) if form == "time" else f"{value:.1%}" if form == "percent" else f"{value:.6g}"


def _bars(bars: Bars) -> str:
    heads = "".join(f"<th scope=col>{escape(axis)}" for axis in bars.axes)
    legend = "".join(f'<span><i class="swatch p{n}"></i>{escape(part)}</span>' for n, part in enumerate(bars.parts))
    body = []
    for axes, shares, words, total in bars.rows:
        label = ", ".join(f"{part} {word}" for part, word in zip(bars.parts, words, strict=True))
        segments = "".join(
            f'<i class="p{n}" style="width:{100 * width:.1f}%"></i>'
            for n, width in enumerate(widths(shares))
            if width > SMALLEST
        )
        cells = "".join(f"<td>{escape(axis)}" for axis in axes)
        body.append(
            f'<tr>{cells}<td><div class="shares" role="img" aria-label="{escape(label)}" title="{escape(label)}">'
            f'{segments}</div><td class="n">{escape(total)}'
        )
    note = f'<p class="note">{rich(bars.note)}</p>' if bars.note else ""
    return (
        f'<figure id="{bars.name}"><figcaption><h3>{escape(bars.title)}</h3><div class="legend">{legend}</div>'
        f'</figcaption><div class="scroll"><table class="bars"><thead><tr>{heads}<th scope=col>share of a step'
        f'<th scope=col class="n">{escape(bars.total)}<tbody>{"".join(body)}</table></div>{note}</figure>'
    )


def _table(table: Table) -> str:
    kinds = [' class="n"' if column in table.numeric else "" for column in table.columns]
    heads = "".join(
        f"<th scope=col{kind}>{_head(column, table)}" for column, kind in zip(table.columns, kinds, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(partial(_cell, table), row, kinds))}" for row in table.rows)
    kind = " ".join(filter(None, ["sortable" * table.is_sortable, "tinted" * table.is_tinted]))
    note = f'<p class="note">{rich(table.note)}</p>' if table.note else ""
    find = (
        f'<div class="find"><label>Find <input type="search" placeholder="any words of a row"></label>'
        f'<output aria-live="polite">{len(table.rows)} rows</output>'
        '<button class="more" type="button" hidden></button></div>'
        if table.is_sortable
        else ""
    )
    tall = " tall" if table.is_sortable else ""
    return (
        f'<figure id="{table.name}"><figcaption><h3>{escape(table.title)}</h3></figcaption>{find}'
        f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="{kind}" data-few="{FEW}"><thead><tr>{heads}<tbody>{body}</table></div>{note}</figure>'
    )


def _head(column: str, table: Table) -> str:
    return f'<button type="button">{escape(column)}</button>' if table.is_sortable else escape(column)


def _cell(table: Table, value: object, kind: str) -> str:
    text = escape(str(value))
    if table.is_tinted and (tint := TINTS.get(str(value).split(" ")[0].rstrip(":"))):
        return f'<td class="{tint}">{text}'
    if len(text) > 40 and not kind:
        return f'<td class="w">{text}'
    return f"<td{kind}>{text}"
