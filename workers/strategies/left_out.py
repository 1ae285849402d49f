"""Steps of a user's script without Horovod's reductions, though the script knows nothing of it: what a step loses then
is what its communication costs.

Horovod's own operations are replaced by others that give back what they were given. A graph that TensorFlow has traced
holds them already: so while they are left out each `tf.function` is traced a second time, as a twin of its own, and its
first graph stays as it is. Both are in place from the end of the window on; before, reductions are only noticed.

Where not all of a step's reductions can be left out, or something else joins its ranks, there is a reason why, and
nothing is to be said of what the rest comes to. Ranks whose gradients were not reduced have come apart: no step behind
these may be one that counts, nor may the script go on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

OPERATIONS = "horovod.tensorflow.mpi_ops"  # Horovod's, whose `MPI_LIB` has an operation each
REDUCTIONS = ("horovod_allreduce", "horovod_grouped_allreduce")
OTHERS = (  # by which ranks wait for each other too
    *("horovod_allgather", "horovod_grouped_allgather", "horovod_alltoall", "horovod_join"),
    *("horovod_reducescatter", "horovod_grouped_reducescatter"),
    *("horovod_broadcast", "horovod_broadcast_inplace", "horovod_broadcast_inplace_resource"),
)
ASK = "a loop that asks sweeps.alone() can leave it out itself"


class Reductions:
    """Horovod's reductions of this process, as far as they can be left out."""

    def __init__(self) -> None:
        self.is_left_out = False  # now
        self.is_in_loop = True  # else they belong to no step
        self._seen = self._left_out = 0
        self._traced: set[str] = set()  # names of functions into whose graphs they were traced
        self._traced_out: set[str] = set()  # likewise: from whose twins they were left out
        self._is_settled = False  # what is traced from now on is timed
        self._doubts: list[str] = []
        self._library: Any = None

    def notice(self) -> None:
        """Notice reductions from now on, if Horovod is there."""
        module = sys.modules.get(OPERATIONS)
        if module is None or self._library is not None:
            return
        self._library = library = module.MPI_LIB
        for name in REDUCTIONS:
            if original := getattr(library, name, None):
                setattr(library, name, self._noticed(original))
        for name in OTHERS:
            if original := getattr(library, name, None):
                setattr(library, name, self._doubted(name, original))

    def prepare(self) -> None:
        """Make it possible to leave them out: have every function that TensorFlow traces have a twin."""
        tf: Any = sys.modules["tensorflow"]
        traced = tf.function(lambda: 0, autograph=False)
        self._twin(type(traced))
        self._doubt_concrete(type(traced.get_concrete_function()))

    def settle(self) -> None:
        """Note that all twins are there: a step without reductions has been taken."""
        self._is_settled = True

    @property
    def why_not(self) -> str:
        """Why reductions can't be left out; empty where it may be tried."""
        if self._library is None or not self._seen:
            return f"no reduction of horovod.tensorflow was seen: {ASK}"
        function = type(sys.modules["tensorflow"].function(lambda: 0))
        return "" if hasattr(function, "_clone") else f"this TensorFlow traces no function twice: {ASK}"

    @property
    def why_in_doubt(self) -> str:
        """Why steps in which they were left out say nothing; empty where they do."""
        if self._doubts:
            return f"{self._doubts[0]}: {ASK}"
        if not self._left_out:
            return f"its reductions are in a graph that no tf.function calls: {ASK}"
        if held := self._traced - self._traced_out:
            return f"the graph of {min(held)} holds reductions, and was called in no step without them: {ASK}"
        return ""

    def _noticed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tf: Any = sys.modules["tensorflow"]

        def reduce(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            name = "" if tf.executing_eagerly() else _function(tf.compat.v1.get_default_graph())
            if not self.is_left_out:
                self._see(name)
                return original(tensors, *args, **kwargs)
            self._leave_out(name)
            is_group = isinstance(tensors, list | tuple)
            return [tf.identity(one) for one in tensors] if is_group else tf.identity(tensors)

        return _as_it_is(reduce)

    def _see(self, name: str) -> None:
        if self.is_in_loop:
            self._seen += 1
            self._traced |= {name} - {""}

    def _leave_out(self, name: str) -> None:
        self._left_out += 1
        self._traced_out |= {name} - {""}
        if name and self._is_settled:
            self._doubts.append("a step without its reductions was traced anew while it was timed")

    def _doubted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def join(*args: Any, **kwargs: Any) -> Any:
            if self.is_left_out:
                self._doubts.append(f"its ranks wait for each other by {name.replace('horovod_', 'hvd.')} too")
            return original(*args, **kwargs)

        return _as_it_is(join)

    def _twin(self, function: Any) -> None:
        call, twins = function.__call__, weakref.WeakKeyDictionary()  # type: ignore[var-annotated]

        def with_twin(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_left_out:
                return call(self_, *args, **kwargs)
            if self_ not in twins:
                twins[self_] = self_._clone(None)
            return call(twins[self_], *args, **kwargs)

        function.__call__ = with_twin

    def _doubt_concrete(self, concrete: Any) -> None:
        call = concrete.__call__

        def with_doubt(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_left_out:
                self._doubts.append("a step calls a graph that was traced before, whose reductions stay")
            return call(self_, *args, **kwargs)

        concrete.__call__ = with_doubt


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that AutoGraph does not convert, as it does all that a traced function calls."""
    return sys.modules["tensorflow"].autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def _function(graph: Any) -> str:
    """Return the name of the function that is traced into a graph, or into one around it."""
    while hasattr(outer := getattr(graph, "outer_graph", None), "outer_graph"):
        graph = outer
    return str(getattr(graph, "name", "a graph"))
