"""How the user called this command, and the commands that its messages suggest, written so that they can be copied.

A suggested command is called as this one was, and has the address that stood on its command line. An address that came
from the environment is left out: the environment still holds. What was simulated lies here, whatever that says: then
the address is `local`. A head that answers for somebody elsewhere is told how they called it by a variable, `CALLED`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from sweeps.text import addresses
from workers.contract.redact import masked

CALLED = "SWEEP_CALLED"
IN_RAY = frozenset({"run", "plan", "resume", "retry", "reproduce", "doctor"})  # take HOST:6379 and auto
NOT_AFAR = frozenset(
    {"run", "reproduce", "backup", "restore", "data", "schema", "completion"}
)  # but `reproduce --measured`
NEVER = frozenset({"data", "schema", "completion"})  # take no address
OF_CLUSTER = {"SWEEP_RESULTS": "SWEEP_SHARED", "MLFLOW_TRACKING_URI": "MLFLOW_STORE"}
FILE = "FILE"  # where nobody has said which: another cluster's would end its sweeps


@dataclasses.dataclass(frozen=True)
class Caller:
    me: str = "sweep"  # how the user called the command
    kind: addresses.Kind = "here"  # where it happens
    address: str = ""  # as it stood on the command line
    file: str = ""  # the launcher file that the command line or the environment names
    sweep: str = ""  # the sweep file, as it stood on the command line

    @property
    def is_afar(self) -> bool:
        return self.kind in addresses.AFAR

    @property
    def ray_up(self) -> str:
        """The command that brings their cluster up to date."""
        file = self.file or (self.address if self.kind == "ssh" else "")
        return f"ray up {shlex.quote(file)}" if file else f"ray up {FILE} (the cluster's launcher file)"

    def command(self, *words: str, is_submitted: bool = False) -> str:
        """Return a command of ours for the same user. On the head itself one that drives a sweep which was submitted
        needs the address of Ray there."""
        return " ".join(map(_quoted, [self.me, *words, *self._where(words, is_submitted)]))

    def _where(self, words: tuple[str, ...], is_submitted: bool) -> list[str]:
        verb, goes_afar = words[0], words[0] not in NOT_AFAR or "--measured" in words
        if verb == "ui" and self.kind == "http":
            return ["--address", FILE]  # it goes through SSH alone
        takes = {
            "here": verb not in {*NEVER, "submit"},
            "ray": verb in IN_RAY,
            "ssh": goes_afar,
            "http": goes_afar,
        }
        if self.address and takes[self.kind]:
            return ["--address", masked(self.address)]  # nobody is shown a password
        return ["--address", "auto"] if is_submitted and self.kind == "here" and verb in IN_RAY else []


def _quoted(word: str) -> str:
    """Quote for a shell; in double quotes where that reads better."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)


_known: list[Caller] = []


@contextlib.contextmanager
def introduce(address: str, kind: addresses.Kind, place: str = "", sweep: str = "") -> Iterator[None]:
    """Within the block, `current` is who called this process, with what they said on the command line. `place` is the
    address that counts, whoever has named it."""
    _known.append(Caller(program(), kind, address, place if kind == "ssh" else "", sweep))
    try:
        yield
    finally:
        _known.pop()


def current() -> Caller:
    """Whoever reads what is said here: somebody elsewhere who asked this head, or who called this process."""
    if asked := os.environ.get(CALLED):
        fields = {field.name for field in dataclasses.fields(Caller)}
        return Caller(
            **{name: value for name, value in json.loads(asked).items() if name in fields}
        )  # newer ones ask too
    return _known[-1] if _known else Caller(program())


def as_json() -> str:
    """Return the same as text, for the environment of a command on the head."""
    hidden = {"address": masked(current().address), "sweep": masked(current().sweep)}
    return json.dumps(dataclasses.asdict(current()) | hidden)


def command(*words: str, is_submitted: bool = False) -> str:
    return current().command(*words, is_submitted=is_submitted)


def named(file: Path) -> str:
    """Return a sweep file as its user named it: one that was sent along has another place here."""
    asked = current()
    return asked.sweep if asked.is_afar and asked.sweep else str(file)


def is_kept(file: Path) -> bool:
    """Say whether the same file can be named once more: what came through a pipe, or as standard input, can't."""
    return file.is_file() and not str(file).startswith(("/dev/", "/proc/"))


def elsewhere(variable: str, here: str) -> str:
    """How to have another folder of results, or another store: `here`, by the user's variable. For somebody elsewhere
    the head's counts, and the cluster's launcher file sets it."""
    asked = current()
    if not asked.is_afar:
        return here
    cure = f"{OF_CLUSTER[variable]} in the cluster's launcher file, then {asked.ray_up} (ends sweeps)"
    return f"the head's {variable} counts, not yours; for another one: {cure}"


def program() -> str:
    """How the user called this command."""
    called = Path(sys.argv[0])
    on_path = any(Path(folder) / "sweep" == called for folder in os.environ.get("PATH", "").split(os.pathsep))
    if on_path or called.name != "sweep":
        return "sweep"
    return min(os.path.relpath(called), str(called.absolute()), key=len)
