"""How a user's program ended badly, told from its exit code and from what it printed last."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from workers.contract.ranks import Fault, Infeasible

LAST = 40  # lines in which a program says why it ends; the frameworks' farewells are among them
ON_DEVICE = re.compile(r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating tensor.*device:GPU")
ON_HOST = re.compile(
    r"^([\w.]+\.)?\w*MemoryError(:|$)"  # of Python, of numpy
    r"|std::bad_alloc"
    r"|DefaultCPUAllocator: can't allocate memory"  # PyTorch
    r"|OOM when allocating tensor"  # TensorFlow
    r"|Cannot allocate memory"  # the system
)


def shortage(lines: Sequence[str]) -> Infeasible | None:
    """Return the finding that memory ran out, where the last of these lines say so."""
    for line in reversed(lines[-LAST:]):
        for kind, pattern in (("device memory", ON_DEVICE), ("host memory", ON_HOST)):
            if pattern.search(line.strip()):
                return Infeasible(kind, line.strip()[:300])
    return None


def why(code: int, lines: Sequence[str], was_killed_for_memory: bool) -> Fault | Infeasible:
    """Return what a program's exit code, other than 0, comes to."""
    if code == -signal.SIGKILL and was_killed_for_memory:
        return Infeasible("host memory", "the kernel ended it because the node had no memory left")
    return shortage(lines) or Fault("exited", f"the program ended with {_how(code)}", exit_code=code)


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {-code} ({signal.Signals(-code).name})"
