"""Tables of published figures, each row with what it states of its set-up: those of references/, and users' own.

A table is a CSV file with a header. A column that is named as an axis of a sweep file (`model`, `batch_size`, `gpus`,
`precision`, `xla`, …) says where on that axis a row stands; an empty one, that nothing is said of it, and of `env.NAME`
that the variable is not set. Further columns:

    images_per_s           what was measured over all GPUs; or `speedup`, over one GPU, with `n` and `unit` (gpu)
    images_per_s_ci        half of its 95% interval, and `repeats`, of how many
    nodes                  over how many, equally filled; or the axis `placement`
    system, hardware       what measured it, for people, and as a fingerprint; framework, software, source likewise
    data_files             the fingerprint of the files that it read; arrangement: its nodes × ranks, such as 1x3+1x1
    device, image_size, …  what holds for the whole table: see SETTINGS
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

import pydantic

from sweeps.analysis import references
from sweeps.errors import InputError, Mistake, shown
from sweeps.spec import reading, rules
from sweeps.spec.keys import AXES, Space, SweepSpec
from workers.contract.messages import WITHOUT_JPEGS
from workers.contract.spelling import did_you_mean

Figure = Literal["images_per_s", "speedup"]
FIGURES: tuple[Figure, ...] = ("images_per_s", "speedup")
MOST_ROWS = 1000
LEAST, MOST = 1e-6, 1e15  # of a figure
NAMED = ("source", "system", "framework", "hardware", "software", "data_files", "arrangement")  # as words
COUNTS = ("images_per_s_ci", "repeats", "nodes", "n", "unit")
SETTINGS = {  # of a whole table: where a sweep file says it
    "device": "device",
    "image_size": "image_size",
    "classes": "classes",
    "labels_from": "labels_from",
    "isolation": "isolation",
    "emulate": "emulate",
    "cores_per_worker": "cores_per_worker",
    "worker_memory_gib": "worker_memory_gib",
    "warmup_steps": "steps.warmup",
    "measured_steps": "steps.measured",
    "ci": "stop.ci",
    "max_steps": "stop.max_steps",
    "min_window": "stop.min_window",
}
COLUMNS = (*NAMED, *(axis for axis in AXES if axis not in (*NAMED, "global_batch")), *COUNTS, *SETTINGS, *FIGURES)
PUBLISHED_STEPS = {"steps.warmup": 10, "steps.measured": 100}
UNSTATED_BATCH = 128
NO_RATE = {  # files of references/ that no sweep of this command can answer, and why
    "convergence": "epochs and hours to an accuracy, which a sweep with preset: long-test trains for",
    "precision": "its rows name neither network nor GPUs",
    "int8_accuracy": "accuracy of inference, which no sweep measures",
}


Note = Callable[[str, str, object], None]  # takes a column, the rule that it breaks, and the value


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One figure, and where it was measured."""

    line: int  # of the file
    settings: Mapping[str, Any]  # by axis
    figure: Figure
    value: float
    rounding: float  # half of the last digit that is printed
    half_width: float = math.nan  # of its 95% interval, where the table has one
    repeats: int = 1
    nodes: int | None = None
    source: str = ""
    system: str = ""
    framework: str = ""
    hardware: str = ""
    software: str = ""
    data_files: str = ""
    arrangement: str = ""

    @property
    def alone(self) -> dict[str, Any]:
        """The settings of one GPU that its speed-up is over."""
        return {**self.settings, "gpus": 1, "placement": "pack"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTable:
    name: str
    place: str  # where it stands
    rows: tuple[PublishedRow, ...]
    settings: Mapping[str, Any]  # of the sweep file, by SETTINGS' keys
    unstated: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what the table is silent on: what is taken

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(row.system for row in self.rows))

    def system(self, beginning: str) -> PublishedTable:
        """Return the rows of one system alone."""
        found = [name for name in self.systems if name == beginning]
        found = found or [name for name in self.systems if name.startswith(beginning)]
        if len(found) != 1:
            rule = f"must begin the name of one system of the table ({', '.join(found or self.systems)})"
            raise InputError(self.name, [Mistake("--system", rule, beginning)])
        return dataclasses.replace(self, rows=tuple(row for row in self.rows if row.system == found[0]))

    def baseline(self, row: PublishedRow) -> PublishedRow | None:
        """Return the row that its relative figure is over: the fewest GPUs at the same settings, if any row has other
        counts than one; else the first row of its system."""
        own = [one for one in self.rows if (one.system, one.figure) == (row.system, row.figure)]
        lines: dict[tuple[Any, ...], list[PublishedRow]] = {}
        for one in own:
            lines.setdefault(_apart_from_gpus(one), []).append(one)
        if any(len({one.settings["gpus"] for one in line}) > 1 for line in lines.values()):
            base = min(lines[_apart_from_gpus(row)], key=lambda one: one.settings["gpus"])
        else:
            base = own[0]
        return None if base is row else base


def _apart_from_gpus(row: PublishedRow) -> tuple[Any, ...]:
    kept = {name: value for name, value in row.settings.items() if name not in ("gpus", "placement")}
    return row.framework, *sorted(kept.items(), key=str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceTable:
    """A table of references/."""

    name: str
    source: str
    file: str
    why_not: str = ""  # it can't be a sweep


def listed() -> list[ReferenceTable]:
    """Return the tables of references/, by where they were printed."""
    found = [
        ReferenceTable(name=slug(source), source=source, file=file, why_not=_why_not(records))
        for file in ("throughput", "speedups")
        for source, records in _by_source(file).items()
    ]
    for file, why in NO_RATE.items():
        found += [
            ReferenceTable(name=slug(source), source=source, file=file, why_not=why)
            for source in _by_source(file)
            if all(slug(source) != one.name for one in found)
        ]
    return found


def _why_not(records: Sequence[tuple[int, dict[str, str]]]) -> str:
    units = {record.get("unit", "gpu") for _, record in records}
    return "" if units == {"gpu"} else "speed-up of the time to an accuracy, over nodes"


def _by_source(file: str) -> dict[str, list[tuple[int, dict[str, str]]]]:
    found: dict[str, list[tuple[int, dict[str, str]]]] = {}
    with (references.FOLDER / f"{file}.csv").open(newline="") as lines:
        reader = csv.DictReader(lines)
        for record in reader:
            found.setdefault(record["source"], []).append((reader.line_num, record))
    return found


def slug(text: str) -> str:
    """Such as a-table-5: what may name a sweep."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "table"


def published(name: str) -> PublishedTable:
    """Return a table of references/ by the whole of its name."""
    one = next(one for one in listed() if one.name == name)
    if one.why_not:
        raise InputError("reproduce", [Mistake("TABLE", f"must be one that a sweep can answer: {one.why_not}", name)])
    place = str(references.FOLDER / f"{one.file}.csv")
    records = _by_source(one.file)[one.source]
    unstated = {"data": "synthetic", "repeats": ""}
    if one.file == "throughput":
        # references/README.md: all of throughput.csv is 10 + 100 steps at batch 128 a GPU.
        return _table(records, name, place, PUBLISHED_STEPS, {**unstated, "framework": ""})
    records = [(line, {**record, "batch_size": str(UNSTATED_BATCH)}) for line, record in records]
    taken = {"batch_size": str(UNSTATED_BATCH), "steps": "10 + 100", "nodes": "as few as there can be"}
    return _table(records, name, place, PUBLISHED_STEPS, {**unstated, **taken})


def load(path: Path) -> PublishedTable:
    """Read a table of a user's own; raises `InputError` with every mistake."""
    return parse(reading.read(path, "a table"), str(path), slug(path.stem))


def parse(text: str, place: str, name: str) -> PublishedTable:
    header, records = _records(text, place)
    has_steps = any(SETTINGS.get(name, "").startswith(("steps.", "stop.")) for name in header)
    silent = {} if has_steps else {"steps": "10 + 100"}
    silent |= {name: "" for name in ("framework", "repeats") if name not in header and "software" not in header}
    silent |= {name: taken for name, taken in (("data", "synthetic"), ("device", "gpu")) if name not in header}
    return _table(records, name, place, PUBLISHED_STEPS if "steps" in silent else {}, silent)


def _records(text: str, place: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the header, and each row with its line; raises where they are none."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise InputError(place, [Mistake(f"line {reader.line_num}", "must be CSV", str(error))]) from None
    if not lines:
        raise InputError(place, [Mistake("", "must have a header and a row", "an empty file")])
    (_, first), *rest = lines
    header = [name.strip().lstrip("\ufeff") for name in first]
    mistakes = list(_wrong_header(header))
    for line, cells in rest:
        if len(cells) != len(header):
            rule = f"must have as many cells as the header, {len(header)}"
            mistakes.append(Mistake(f"line {line}", rule, len(cells)))
    if not rest:
        mistakes.append(Mistake("", "must have a row under its header", "none"))
    if len(rest) > MOST_ROWS:
        mistakes.append(Mistake("", f"must have at most {MOST_ROWS} rows: split it", len(rest)))
    if mistakes:
        raise InputError(place, mistakes)
    return header, [(line, dict(zip(header, map(str.strip, cells), strict=True))) for line, cells in rest]


def _wrong_header(header: Sequence[str]) -> Iterator[Mistake]:
    if len(header) == 1 and (sign := next((sign for sign in ";\t|" if sign in header[0]), "")):
        said = {"\t": "tabs"}.get(sign, sign)
        yield Mistake("line 1", "must separate its cells by commas: save it as CSV with commas", said)
        return
    for name in dict.fromkeys(header):
        if header.count(name) > 1:
            yield Mistake("line 1", "a column must be there once", name or "no name")
        if name not in COLUMNS and not name.startswith("env."):
            hint = did_you_mean(name, COLUMNS, ", ".join(COLUMNS))
            yield Mistake("line 1", f"must be a known column{hint}", name or "no name")
        if name.startswith("env.") and not (name[4:].isidentifier() and name.isascii()):
            yield Mistake("line 1", "the name of a variable must be letters, digits and '_'", name)
    for needed in (("model",), ("gpus", "n"), ("batch_size",), FIGURES):
        if not set(needed) & set(header):
            yield Mistake("line 1", f"must have a column {' or '.join(needed)}", "none")


def _table(
    records: Sequence[tuple[int, dict[str, str]]],
    name: str,
    place: str,
    settings: Mapping[str, Any],
    unstated: Mapping[str, str],
) -> PublishedTable:
    mistakes: list[Mistake] = []
    rows: list[PublishedRow] = []
    common = _common(records, mistakes)
    seen: dict[Any, int] = {}
    for line, record in records:
        made = _row(line, record, common, _noter(line, mistakes))
        if made:
            whose = (made.system, made.framework, made.figure, tuple(sorted(made.settings.items(), key=str)))
            if whose in seen:
                rule = f"must differ from line {seen[whose]} in its system or its settings: leave one of them out"
                _noter(line, mistakes)("", rule, "the same")
            seen.setdefault(whose, line)
            rows.append(made)
    mistakes += _half_set(rows)
    if mistakes:
        raise InputError(place, list(dict.fromkeys(mistakes)))
    common = {"device": "gpu", **settings, **common}
    return PublishedTable(name=name, place=place, rows=tuple(rows), settings=common, unstated=unstated)


def _common(records: Sequence[tuple[int, dict[str, str]]], mistakes: list[Mistake]) -> dict[str, Any]:
    """Return what rows say of the whole table; where one says otherwise than one before it, a mistake is noted."""
    common: dict[str, Any] = {}
    for line, record in records:
        own = {SETTINGS[key]: typed(record[key]) for key in SETTINGS if record.get(key)}
        for key, value in own.items():
            if common.setdefault(key, value) != value:
                rule = f"must be the same in every row ({shown(common[key])} further up): split the table"
                _noter(line, mistakes)(column(key), rule, value)
    return common


def _half_set(rows: Sequence[PublishedRow]) -> Iterator[Mistake]:
    """Rows that differ in nothing but that one sets a variable: a sweep file has no word for one that is not set."""
    some = [name for name in dict.fromkeys(name for row in rows for name in row.settings) if name.startswith("env.")]
    some = [name for name in some if any(name not in row.settings for row in rows)]
    for name in some:
        at: dict[Any, PublishedRow] = {}
        for row in sorted(rows, key=lambda one: name not in one.settings):
            for point in (row.settings, *([row.alone] if row.figure == "speedup" else [])):
                where = apart_from(point, some)
                first = at.setdefault(where, row)
                if (name in first.settings) != (name in row.settings):
                    rule = f"must be given, or another axis must tell this row from line {first.line}, which gives it"
                    yield Mistake(f"line {row.line}, {name}", f"{rule}: split the table, or leave one out", None)


def apart_from(point: Mapping[str, Any], names: Collection[str]) -> tuple[Any, ...]:
    """Return where a point stands on all axes but some; equal where a sweep file that says nothing would stand there
    too."""
    known = dict.fromkeys((*AXES, *point))
    return tuple((name, point.get(name, usual(name))) for name in known if name not in names)


def _noter(line: int, mistakes: list[Mistake]) -> Note:
    def note(column: str, rule: str, got: object) -> None:
        mistakes.append(Mistake(f"line {line}, {column}" if column else f"line {line}", rule, got))

    return note


def _row(line: int, record: Mapping[str, str], common: Mapping[str, Any], note: Note) -> PublishedRow | None:
    """Return a row of the table, of all of which `common` holds; None where a mistake is noted."""
    is_sound = True

    def wrong(column: str, rule: str, got: object) -> None:
        nonlocal is_sound
        is_sound = False
        note(column, rule, got)

    figure: Figure = "images_per_s" if record.get("images_per_s") else "speedup"
    if record.get("images_per_s") and record.get("speedup"):
        wrong("speedup", "must be left out beside images_per_s: it follows from the rows", record["speedup"])
    value, rounding = _number(figure, record.get(figure, ""), wrong)
    settings = _settings(record)
    nodes = _whole("nodes", record, wrong)
    repeats = _whole("repeats", record, wrong) or 1
    half_width = _number("images_per_s_ci", record["images_per_s_ci"], wrong)[0] if record.get("images_per_s_ci") else 0
    if half_width and repeats < 2:
        wrong("repeats", "must be 2 or more beside images_per_s_ci: an interval comes from repeats", repeats)
    if figure == "speedup" and record.get("unit", "gpu") != "gpu":
        wrong("unit", "must be gpu: a speed-up over one GPU", record["unit"])
    gpus = settings.get("gpus")
    if nodes and isinstance(gpus, int) and "placement" not in settings:
        if gpus % nodes:
            wrong("nodes", f"must divide gpus ({gpus}); else give the column placement: pack or spread", nodes)
        else:
            settings["placement"] = "pack" if gpus == 1 else f"{nodes}x{gpus // nodes}"
    if "decode_threads" in settings and settings.get("data", usual("data")) in WITHOUT_JPEGS:
        rule = "has no effect where no JPEG is decoded: leave it empty, or give the folder in the column data"
        wrong("decode_threads", rule, settings["decode_threads"])
    checked, mistakes = _checked(settings, common)
    for mistake in mistakes:
        if mistake.key == "stop":  # a section of a sweep file, of which a table has the keys as columns
            name = next(name for name, path in SETTINGS.items() if path.startswith("stop.") and path in common)
            rule = "must be left out beside warmup_steps and measured_steps, which say how many steps there are"
            wrong(name, rule, common[SETTINGS[name]])
        else:
            wrong(column(mistake.key), mistake.rule, mistake.got)
    if not is_sound:
        return None
    words = {name: record.get(name, "") for name in NAMED}
    return PublishedRow(
        line=line,
        settings=checked,
        figure=figure,
        value=value,
        rounding=rounding,
        half_width=half_width or math.nan,
        repeats=repeats,
        nodes=nodes,
        **words,
    )


def _settings(record: Mapping[str, str]) -> dict[str, Any]:
    """Return where a row stands on the axes that it names."""
    named = {"gpus": record["n"], **record} if record.get("n") else record
    axes = [name for name in named if name.startswith("env.") or (name in AXES and name not in NAMED)]
    worded = {"model", "data", "placement", "lr_schedule", "precision"}
    found = {
        name: named[name] if name in worded or name.startswith("env.") else typed(named[name])
        for name in axes
        if named[name]
    }
    return found | ({"framework": "torch"} if "torch" in named.get("framework", "").lower() else {})


def typed(text: str) -> Any:
    """Return a cell as a sweep file would have it."""
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if text.lower() in ("true", "on", "false", "off"):
        return text.lower() in ("true", "on")
    try:
        return text if text.isdigit() else float(text)
    except ValueError:
        return text


def _number(column: str, text: str, wrong: Note) -> tuple[float, float]:
    """Return a figure, and half of its last digit."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(-1)
    if not (value.is_finite() and value > 0 and "_" not in text):
        wrong(column, "must be a number above 0, without a unit or separators", text or "nothing")
        return 1.0, 0.0
    if not LEAST <= value <= MOST:
        wrong(column, f"must be from {LEAST:g} to {MOST:g}", text)
        return 1.0, 0.0
    exponent = value.as_tuple().exponent
    return float(value), 0.5 * 10.0 ** int(exponent)


def _whole(column: str, record: Mapping[str, str], wrong: Note) -> int | None:
    text = record.get(column, "")
    if not text:
        return None
    if re.fullmatch(r"[1-9][0-9]{0,5}", text):
        return int(text)
    wrong(column, "must be a whole number from 1", text)
    return None


def _checked(settings: Mapping[str, Any], common: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the settings as a sweep file of this one row would have them, and what would be wrong with it."""
    unusual = {name: value for name, value in settings.items() if value != usual(name)}
    content = {"name": "x", **content_of({"device": "gpu", **common}, unusual)}
    try:
        spec = SweepSpec.model_validate(content)
    except pydantic.ValidationError as error:
        return {}, reading.mistakes(error, content, SweepSpec)
    return {name: spec.axes[name].points()[0] for name in settings}, rules.broken(spec, set())


def usual(axis: str) -> Any:
    """Return where a sweep file stands that says nothing; None where it must say something."""
    if axis == "data":
        return SweepSpec.model_fields[axis].default.points()[0]
    field = Space.model_fields.get(axis)
    return field.default.points()[0] if field and hasattr(field.default, "points") else None


def content_of(settings: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and axes as the keys of a sweep file."""
    content: dict[str, Any] = {name: axes[name] for name in ("model", "data") if name in axes}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if name:
            content.setdefault(section, {})[name] = value
        else:
            content[key] = value
    space = {name: value for name, value in axes.items() if name in AXES[2:]}
    if variables := {name[4:]: value for name, value in axes.items() if name.startswith("env.")}:
        space["env"] = variables
    return {**content, "space": space}


def column(key: str) -> str:
    """Return the column of a sweep file's key."""
    by_key = {path: column for column, path in SETTINGS.items()}
    return by_key.get(key, key.removeprefix("space."))
