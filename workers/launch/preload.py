"""All of the project that a rank may import, imported at once, and the fingerprint of what was imported.

A node's fork server does so before it forks its first rank. From then on its ranks run what it has loaded, whatever
becomes of the files: an edit in the middle of a sweep changes nothing that runs. A rank that starts as a process of
its own (`environment.needs_own_process`) loads the files as they are when it starts, and has a fingerprint of its own:
if they were edited meanwhile its trial is told apart from the others.

Both start by `start_from_source`, whose loaders know the source that each module was compiled from. The fingerprint is
of the files as they lie there when all is loaded, and every loaded module must be one of these: neither an edit in
between nor a `.pyc` of another program can stand for them. Of the packages that a rank computes with it is of their
files as they lie there then.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.contract.messages import Framework
from workers.node import fingerprint, start_from_source

# What a rank (`launch.rank`) and its training (`workloads.images.train`) come to import, at once or later, of each
# framework; a test reads their imports and holds this.
MODULES: dict[Framework, tuple[str, ...]] = {
    "tensorflow": (
        "workers.launch.rank",
        "workers.workloads.images.train",
        "workers.workloads.script.run",
        "workers.frameworks.tensorflow.body",
        "workers.inputs.digits",
        "workers.inputs.own",
        "workers.inputs.records",
        "workers.inputs.synthetic",
    ),
    "torch": (
        "workers.launch.rank",
        "workers.workloads.images.train",
        "workers.frameworks.torch.body",
        "workers.frameworks.torch.models.alexnet",
        "workers.frameworks.torch.models.googlenet",
        "workers.frameworks.torch.models.inception",
        "workers.frameworks.torch.models.resnet",
        "workers.frameworks.torch.models.tiny",
        "workers.frameworks.torch.models.vgg",
        "workers.inputs.plain.records",
    ),
}
# Keras imports these where they are installed, for plots, data frames and estimators, which no rank has: two fifths of
# the time until a node is ready, and a quarter of its fork server's memory.
UNUSED = frozenset({"matplotlib", "pandas", "sklearn"})


class LoadedError(Exception):
    """What was loaded is not what lies there, so that no fingerprint of the files tells what runs."""


@contextlib.contextmanager
def without_unused() -> Iterator[None]:
    """Meanwhile these are as if they were not installed; afterwards a rank that wants one imports it as ever."""
    hidden: dict[str, Any] = dict.fromkeys(UNUSED - sys.modules.keys())  # None there is a module that is not found
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def loaded(facts: Mapping[str, Any], framework: Framework = "tensorflow") -> dict[str, Any]:
    """Import what a rank of this framework needs; return the facts of its software with what was imported."""
    with without_unused():
        for module in MODULES[framework]:
            importlib.import_module(module)
    lying = fingerprint.contents()
    for wrong in _unlike({path: start_from_source.digest(content) for path, content in lying.items()}):
        raise LoadedError(wrong)
    return {**facts, **fingerprint.package_contents(framework), "code": fingerprint.code(lying)}


def _unlike(lying: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the project's modules in this process, against the digests of the files by path."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != fingerprint.PACKAGE.name:
            continue
        path = Path(module.__file__ or "").relative_to(fingerprint.PACKAGE).as_posix()
        if not (compiled := start_from_source.compiled(module)):
            yield f"{name} must be compiled from its source, but a .pyc may have been taken: see start_from_source.py"
        elif compiled != lying.get(path):
            yield f"workers/{path} must stay as it is while it is loaded, but was edited"
