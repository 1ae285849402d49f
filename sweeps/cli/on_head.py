"""A command that is run on a cluster's head for somebody elsewhere.

python -m sweeps.cli.on_head ARGUMENTS of sweep
"""

from __future__ import annotations

import sys

from sweeps.cli import main as cli
from sweeps.cluster import versions
from sweeps.cluster.marked_output import CODE, ERR, OUT, Marked


def main(arguments: list[str]) -> None:
    to = sys.stdout
    streams = Marked(OUT, to), Marked(ERR, to)
    sys.stdout, sys.stderr = streams
    if differs := versions.difference_from_caller():
        print(differs, file=sys.stderr)
    try:
        code: object = cli.main(arguments)
    except SystemExit as end:  # argparse
        code = end.code
    for stream in streams:
        stream.close()
    to.write(f"sweep|{CODE}|{code if isinstance(code, int) else 1}\n")
    to.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
