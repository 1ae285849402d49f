"""Commands that look at machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sweeps import errors
from sweeps.cli import completion, options
from sweeps.cli.grammar import command
from sweeps.cli.place import At, May
from sweeps.text.addresses import AFAR
from sweeps.text.tables import Format


def _of_cluster(may: May, given: Mapping[str, Any]) -> May:
    """Without `--cluster` it is this machine, whatever the environment says."""
    if not given["cluster"]:
        return dataclasses.replace(may, heeds_environment=False)
    return dataclasses.replace(may, kinds=[kind for kind in may.kinds if kind != "here"], default="auto")


@command("doctor")
@options.flag("--cluster", says="every node of the cluster, not this machine; so does --address")
@options.option(
    "--data",
    multiple=True,
    metavar="DIR",
    help="a folder that must be readable",
    shell_complete=completion.folders,
)
@options.formatted()
@options.address("here", "ray", *AFAR, but=_of_cluster)
def doctor(at: At, cluster: bool, data: tuple[str, ...], form: Format) -> int:
    """Check what this machine can do, or with --cluster each node of a cluster, and what is wrong."""
    if at.is_afar:
        return at.relay(*([] if cluster else ["--cluster"]))
    from sweeps.text import tables

    if at.ray:
        from sweeps.cluster import checkup

        rows = checkup.examine(at.ray, data)
        tables.show_rows(rows, form)
        return errors.REFUSED if any(row["wrong"] for row in rows) else errors.DONE
    from sweeps.cluster import doctor

    findings = doctor.examine(data)
    tables.show_rows([finding.row() for finding in findings], form)
    return errors.REFUSED if any(finding.is_wrong for finding in findings) else errors.DONE


COMMANDS = (doctor,)
