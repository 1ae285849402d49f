"""`python -m sweeps.cli` is the `sweep` command."""

from __future__ import annotations

import sys

from sweeps.cli.main import main

sys.exit(main())
