"""Which packages are installed, and in which version."""

from __future__ import annotations

import importlib.metadata


def version_of(package: str, otherwise: str = "") -> str:
    """Return a package's version, or what is said otherwise where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return otherwise
