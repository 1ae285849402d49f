"""How a plot looks, said once: colours, lines, letters and the parts of a bar.

A page has it as rules of its style sheet (`css`), so that a reader's night or a printer changes the colours. A picture
has the colours of the day.
"""

from __future__ import annotations

import dataclasses

HUE = "currentColor"  # that of the series
_TOLD_APART = {  # Okabe and Ito's, darkened (by night: lightened) until each has contrast enough
    "--c0": ("#0072b2", "#4aa8e0"),
    "--c1": ("#d55e00", "#ff8a3d"),
    "--c2": ("#00805c", "#2ec79b"),
    "--c3": ("#b3528a", "#e08cbd"),
    "--c4": ("#b07d00", "#e6b422"),
    "--c5": ("#3d9bd1", "#8fd0f5"),
    "--c6": ("#4a4a4a", "#c3c9d0"),
    "--c7": ("#8f3b1b", "#d98a6a"),
}
_RAMP = {  # from dark to light: series that stand for numbers
    "--s0": ("#35115c", "#8d6cc9"),
    "--s1": ("#46327e", "#7d83d6"),
    "--s2": ("#365c8d", "#6a9fd8"),
    "--s3": ("#277f8e", "#4fb8c4"),
    "--s4": ("#1c9480", "#45c9a5"),
    "--s5": ("#379f53", "#77d682"),
    "--s6": ("#7a9a12", "#b5dd5a"),
    "--s7": ("#a89100", "#f2e04e"),
}
_REST = {
    "--paper": ("#ffffff", "#12151a"),
    "--ink": ("#16191d", "#e7eaee"),
    "--muted": ("#59636e", "#9ba6b2"),
    "--rule": ("#dfe3e8", "#2e3640"),
    "--warn": ("#8a4b00", "#ffc66d"),
}
DAY, NIGHT = ({name: pair[n] for name, pair in (_REST | _TOLD_APART | _RAMP).items()} for n in (0, 1))
COLOURS = len(_TOLD_APART)


@dataclasses.dataclass(frozen=True)
class Look:
    """How a line or an area is drawn. Colours are names of DAY and NIGHT, HUE, or plain ones."""

    name: str  # its class in the page
    fill: str = "none"
    stroke: str = "none"
    width: float = 0.0
    dashes: tuple[float, ...] = ()
    is_round: bool = False
    opacity: float = 1.0
    faint: float = 1.0  # the opacity in a series that is there to compare with


GRID = Look("grid", stroke="--rule", width=1)
AXIS = Look("axis", stroke="--muted", width=1)
LINE = Look("line", stroke=HUE, width=2, is_round=True)
IDEAL = Look("ideal", stroke="--muted", width=1.5, dashes=(5, 4))
BAND = Look("band", fill=HUE, opacity=0.16)
WHISKER = Look("whisker", stroke=HUE, width=1.4, faint=0.45)
MARK = Look("mark", fill=HUE, stroke="--paper", width=1, faint=0.75)
CROSS = Look("mark cross", stroke=HUE, width=2, faint=0.75)
DOT = Look("mark dot", stroke=HUE, is_round=True, opacity=0.0)  # on a long line: seen where it is pointed at


@dataclasses.dataclass(frozen=True)
class Letters:
    name: str  # their class in the page
    colour: str
    size: float
    weight: int = 400


TICK = Letters("", "--muted", 12)
LABEL = Letters("label", "--ink", 12.5)
STAMP = Letters("stamp", "--warn", 11, 700)


@dataclasses.dataclass(frozen=True)
class BarPart:
    """A part of a bar: a colour, and stripes that tell it apart without one."""

    colour: str
    stripe: Look | None = None
    lean: int = 0  # degrees that the way across the stripes is turned from upward: a stripe of 45 falls to the right
    every: float = 0.0  # across


_LIGHT = Look("", stroke="#ffffff", width=2, opacity=1 / 3)
_DARK = Look("", stroke="#000000", width=2, opacity=0.2)
PARTS = (
    BarPart("--c0"),
    BarPart("--c5", _DARK, -45, 5),
    BarPart("--c4", _LIGHT, 45, 6),
    BarPart("--c1", _DARK, -45, 5),
    BarPart("--rule"),
)


def css() -> str:
    """Return the rules of a page's style sheet."""
    looks = (GRID, AXIS, LINE, IDEAL, BAND, WHISKER, MARK, CROSS, DOT)
    return "".join(
        [
            f":root{{{_variables(DAY)}}}",
            f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(NIGHT)}}}}}",
            *(f"{_selector(look)}{{{_shape(look)}}}" for look in looks),
            *(f".faint {_selector(look)}{{opacity:{look.faint}}}" for look in looks if look.faint < 1),
            *(f".plot {_letters(letters)}" for letters in (TICK, LABEL, STAMP)),
            *(f".p{n}{{{_part(part)}}}" for n, part in enumerate(PARTS)),
        ]
    )


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"{name}:{colour}" for name, colour in colours.items())


def _selector(look: Look) -> str:
    return "".join(f".{word}" for word in look.name.split())


def _colour(name: str) -> str:
    return f"var({name})" if name.startswith("--") else name


def _shape(look: Look) -> str:
    made = [f"fill:{_colour(look.fill)}", f"stroke:{_colour(look.stroke)}", f"stroke-width:{look.width:g}"]
    made += [f"stroke-dasharray:{' '.join(f'{dash:g}' for dash in look.dashes)}"] if look.dashes else []
    made += ["stroke-linejoin:round;stroke-linecap:round"] if look.is_round else []
    made += [f"opacity:{look.opacity:g}"] if look.opacity < 1 else []
    return ";".join(made)


def _letters(letters: Letters) -> str:
    where = f".{letters.name}" if letters.name else "text"
    return f"{where}{{fill:{_colour(letters.colour)};font-size:{letters.size:g}px;font-weight:{letters.weight}}}"


def _part(part: BarPart) -> str:
    colour = f"background-color:{_colour(part.colour)}"
    if not part.stripe:
        return colour
    stripe = f"{part.stripe.stroke}{round(255 * part.stripe.opacity):02x} 0 {part.stripe.width:g}px"
    gap = f"transparent {part.stripe.width:g}px {part.every:g}px"
    return f"{colour};background-image:repeating-linear-gradient({part.lean}deg,{stripe},{gap})"
