"""Steps and results of a script that trains by Keras' `fit`, without an edit: callbacks of ours go with the script's
own."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from workers.contract.ranks import Fault
from workers.workloads.script.loop import OwnLoop
from workers.workloads.script.reports import Reports

BY_FIT = "Keras' fit"


def watch(loop: OwnLoop | None, reports: Reports) -> None:
    """Have every `fit` of this process tell the loop of its steps, where there is one, and of its epochs what it says
    of them; nothing where no Keras is loaded."""
    keras = sys.modules.get("keras")
    if keras is None:
        return
    fit = keras.Model.fit
    shape = inspect.signature(fit)

    class ResultsCallback(keras.callbacks.Callback):  # type: ignore[name-defined]
        """Comes before the script's own callbacks, which may report of the same epoch."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            reports.settle()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            reports.said_by_fit(epoch + 1, logs if logs is not None else {})

    class StepCallback(keras.callbacks.Callback):  # type: ignore[name-defined]
        """Comes behind the script's own callbacks, which belong to its steps."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if self.model.steps_per_execution != 1:
                rule = "fit must take its steps one by one to be timed: steps_per_execution must be 1"
                raise Fault("several steps at once", f"{rule}, but is {self.model.steps_per_execution}")
            assert loop
            loop.begins(BY_FIT)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert loop
            loop.stepped()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            assert loop
            loop.pauses()

    @functools.wraps(fit)
    def watched(*args: Any, **kwargs: Any) -> Any:
        given = shape.bind(*args, **kwargs)
        own = given.arguments.get("callbacks") or []
        own = own if isinstance(own, list) else [own]
        given.arguments["callbacks"] = [ResultsCallback(), *own, *([StepCallback()] if loop else [])]
        return fit(*given.args, **given.kwargs)

    keras.Model.fit = watched
