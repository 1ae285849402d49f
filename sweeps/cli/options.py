"""The options and words that several commands take: each spelled and explained once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sweeps.cli import completion, place
from sweeps.cli.grammar import Argument, OneOf, Option, Real
from sweeps.cli.place import May
from sweeps.text import addresses

Call = TypeVar("Call", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, readable=False)  # what is wrong with a file is said by who reads it


def option(*names: str, **of: Any) -> Callable[[Call], Call]:
    return click.option(*names, cls=Option, **of)


def argument(name: str, **of: Any) -> Callable[[Call], Call]:
    return click.argument(name, cls=Argument, **of)


def flag(name: str, *further: str, says: str) -> Callable[[Call], Call]:
    return option(name, *further, is_flag=True, help=says)


def named(says: str = "", **of: Any) -> Callable[[Call], Call]:
    help_ = f"a sweep's name, as in results/NAME{says}"
    return argument("name", metavar="NAME", help=help_, shell_complete=completion.sweeps, **of)


def overriding(call: Call) -> Call:
    return option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE ...",
        help="values that replace those of the sweep file",
        shell_complete=completion.keys,
    )(call)


def sweep_file(call: Call) -> Call:
    help_ = "a sweep file, such as search_spaces/demo.yaml"
    return argument("file", metavar="FILE", type=FILE, help=help_)(overriding(call))


fresh = flag("--fresh", says="measure again what earlier sweeps have measured")
following = flag("-f", "--follow", says="go on until it ends")
skipping = flag("--skip-impossible", says="leave out the trials that the cluster can never hold; run the others")
budgeted = option(
    "--budget",
    type=Real(),
    metavar="GPU_HOURS",
    help="what the whole sweep may spend, with what it has spent already; replaces the file's budget",
)
simulated = option("--simulate", default="", metavar="SHAPE", help="a cluster, such as nodes=8,gpus=4,gpu=v100")


def formatted(*forms: str, says: str = "") -> Callable[[Call], Call]:
    forms = forms or ("table", "csv", "json")
    help_ = f"the form of what comes out ({forms[0]}){says}"
    return option("--format", "form", type=OneOf(forms), default=forms[0], help=help_)


def stored(several: str = "") -> Callable[[Call], Call]:
    """Which store is read; with words for several, they are a tuple."""
    of: dict[str, Any] = {"multiple": True} if several else {"default": ""}
    return option("--store", metavar="URI", help=f"a tracking store to read instead{several}", **of)


class AddressOption(Option):
    """`--address`, with where its command may happen."""

    def __init__(self, *given: Any, may_by: place.MayBy, kinds: tuple[addresses.Kind, ...], **of: Any) -> None:
        super().__init__(*given, **of)
        self.may_by, self.kinds = may_by, kinds


def address(
    *kinds: addresses.Kind, but: Callable[[May, Mapping[str, Any]], May] = lambda may, _: may
) -> Callable[[Call], Call]:
    """Where a command may happen; `but` changes that by what else it is given. The command gets an `At`."""
    forms = {
        "ray": "HOST:6379 or auto: the cluster that this machine is in",
        "ssh": "cluster.yaml: a cluster elsewhere, through SSH",
    }
    allowed = "; or ".join(form for kind, form in forms.items() if kind in kinds) or "local, the only one it takes"
    over_http = " (http://HEAD:8265: without SSH)" if "http" in kinds else ""
    otherwise = ", else this machine" if "here" in kinds else ""
    silent = f"not given: {addresses.JOB_SERVER} or {addresses.RAY} says it{otherwise}"

    def may_by(given: Mapping[str, Any]) -> May:
        return but(May(kinds), given)

    def decorated(call: Any) -> Any:
        return click.option(
            "--address",
            metavar="ADDRESS",
            cls=AddressOption,
            may_by=may_by,
            kinds=kinds,
            help=f"{allowed}{over_http}; {silent}",
            shell_complete=completion.places,
        )(place.at_its_place(call, may_by))

    return decorated
