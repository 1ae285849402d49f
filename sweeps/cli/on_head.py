"""A command that is run on a cluster's head for somebody elsewhere.

python -m sweeps.cli.on_head ARGUMENTS of sweep
"""

from __future__ import annotations

import os
import sys

from sweeps.cli import main as cli
from sweeps.cluster import job_traces, versions
from sweeps.cluster.marked_output import CODE, ERR, OUT, Marked
from sweeps.record import ledger


def main(arguments: list[str]) -> None:
    to = sys.stdout
    streams = Marked(OUT, to), Marked(ERR, to)
    sys.stdout, sys.stderr = streams
    if differs := versions.difference_from_caller(minds_python=arguments[:1] == ["doctor"]):
        print(differs, file=sys.stderr)
    job_traces.delete_logs(os.environ.get(ledger.JOB, ""))
    try:
        code: object = cli.main(arguments)
    except SystemExit as end:
        code = end.code
    for stream in streams:
        stream.close()
    to.write(f"sweep|{CODE}|{code if isinstance(code, int) else 1}\n")
    to.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
