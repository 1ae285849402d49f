"""The files of a user's own code that a sweep names: what can be told of them before a rank runs them, and which of
them a cluster needs. Reads files; runs none of them."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.util
import os
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from sweeps.errors import InputError, Mistake
from sweeps.spec import plan, program, secrecy
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from workers.contract import functions, redact
from workers.contract.messages import TrialConfig
from workers.contract.rule import RuleError

MOST_MIB, MOST_FILES = 50, 5000
PIECE, OVERLAP = 1 << 20, 1 << 13  # characters that are searched for secrets at once, and once more with the next ones
DATA = (
    ".json",
    ".yaml",
    ".yml",
    ".ini",
    ".toml",
    ".cfg",
    ".conf",
    ".env",
    ".ipynb",
    ".txt",
)  # in which all are looked for
SOME = 50  # cells
LARGEST = 3  # files that are named where there is too much
MIB = 1 << 20
NOT_CODE = ("__pycache__", "mlruns", "mlartifacts", "results", "node_modules", "*.egg-info", "mlflow.db*")
SECRET_FILES = (
    *(".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*"),
    *("id_ed25519*", ".netrc", ".pgpass", ".npmrc", ".pypirc", "kubeconfig", "*.kubeconfig"),
)


def mistakes(trials: Iterable[TrialConfig], folder: Path, *, is_whole: bool) -> Iterator[Mistake]:
    """Yield what is wrong with the functions that trials name, as far as their files say. `is_whole`: what is neither
    in the folder nor installed here is nowhere."""
    seen: set[tuple[str, ...]] = set()
    said: set[str] = set()
    for trial in trials:
        words = functions.named(trial.model, trial.data)
        key = (*words.values(), *trial.own)
        if not words or key in seen:
            continue
        seen.add(key)
        for mistake in _of_trial(trial, words, folder, is_whole):
            if str(mistake) not in said:
                said.add(str(mistake))
                yield mistake


def _of_trial(trial: TrialConfig, words: dict[functions.Key, str], folder: Path, is_whole: bool) -> Iterator[Mistake]:
    asked: dict[functions.Key, functions.Parameters] = {}
    for key, word in words.items():
        try:
            found = functions.read(word, folder)
        except RuleError as error:
            yield Mistake(key, error.rule, error.got)
            continue
        if found:
            asked[key] = found
        elif is_whole and not _is_somewhere(word, folder):
            yield Mistake(key, f"must be MODULE:FUNCTION of a module in {folder}, or of one that is installed", word)
    if len(asked) == len(words):
        try:
            functions.check(asked, words, trial.own, trial.protocol == "convergence")
        except RuleError as error:
            at, _, rule = error.rule.partition(": ")
            yield Mistake(at, rule, error.got)


def _is_somewhere(word: str, folder: Path) -> bool:
    module = word.partition(":")[0]
    top = module.partition(".")[0]
    return functions.file_of(module, folder) is not None or importlib.util.find_spec(top) is not None


def check(planned: Plan, place: str, *, is_whole: bool) -> None:
    """Raise every mistake in the functions that trials name, of the working folder; of a search some stand for all."""
    if not program.functions_of(planned.spec):
        return
    trials = planned.trials or plan.sample(planned.spec, SOME)
    if found := [*mistakes(trials, Path.cwd(), is_whole=is_whole)]:
        raise InputError(place, found)


@dataclasses.dataclass(frozen=True)
class Files:
    """Files of a user's own code, as paths in a folder."""

    folder: Path
    taken: tuple[Path, ...] = ()
    secrets: tuple[Path, ...] = ()  # that look like some, and are left out

    def copy_to(self, folder: Path) -> None:
        for path in self.taken:
            copy = folder / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / path, copy)

    def words(self, most: int | None = None) -> list[str]:
        """Say what travels to a cluster, with so many names at most, and what does not; nothing where nothing does."""
        said = []
        if self.taken:
            size = sum((self.folder / path).stat().st_size for path in self.taken) / MIB
            said.append(f"{len(self.taken)} files of your code, {size:.2f} MiB: {_listed(self.taken, most)}")
        if self.secrets:
            said.append(f"left out, since they look like secrets: {_listed(self.secrets, most)}")
        return said


def _listed(paths: Sequence[Path], most: int | None) -> str:
    more = len(paths) - len(paths[:most])
    return ", ".join([*map(str, paths[:most]), *([f"and {more} more, which sweep plan names"] if more else [])])


def files(spec: SweepSpec, folder: Path) -> Files:
    """Return what a sweep needs of a folder of the user's own code. Raises `InputError` where it is too much."""
    words = program.functions_of(spec)
    try:
        found = {path.relative_to(folder) for path in functions.followed(words, folder)}
    except RuleError as error:
        raise InputError(words[0], [Mistake("", error.rule, error.got)]) from None
    secrets = {path for path in found if holds_secret(folder / path)}
    if secrets:  # a module can't be left out: the trials would lack it
        rule = "your code travels to the cluster and is kept there, so it must hold no key: have env_from name one"
        raise InputError(str(folder), [Mistake("", rule, str(min(secrets)))])
    beside: set[Path] = set()
    for root in _folders(spec.run, folder) if spec.run else ():
        taken, kept_back = _walked(folder, root)
        beside |= taken
        secrets |= kept_back
    _require_small(found | beside, folder)  # before all of it is read
    secrets |= {path for path in beside if holds_secret(folder / path)}
    found |= beside - secrets
    return Files(folder, tuple(sorted(found)), tuple(sorted(secrets)))


def _folders(run: str, folder: Path) -> Iterator[Path]:
    """Yield the folders of the files that a command names, and of a module that Python is to run."""
    words = shlex.split(run)
    for before, word in zip(["", *words], words, strict=False):
        path = folder / word
        module = functions.file_of(word, folder) if before == "-m" else None
        if module:
            yield folder / word.partition(".")[0] if "." in word or module.name == "__init__.py" else folder
        elif not os.path.isabs(word) and path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            yield path.parent


def _walked(folder: Path, root: Path) -> tuple[set[Path], set[Path]]:
    """Return what may be taken of a folder, and what looks like secrets by its name."""
    taken, secrets = set(), set()
    for at, names, here in os.walk(root):
        inside = [name for name in names if not _is_left(name) and not (Path(at) / name / "pyvenv.cfg").exists()]
        names[:] = inside
        for name in here:
            path = Path(at) / name
            if path.is_symlink() or not path.is_file():
                continue
            if is_secret(name):
                secrets.add(path.relative_to(folder))
            elif not _is_left(name):
                taken.add(path.relative_to(folder))
        if len(taken) > MOST_FILES:
            rule = f"the files of your code must be at most {MOST_FILES} (keep data elsewhere)"
            raise InputError(str(root), [Mistake("", rule, f"{len(taken)} when {at} was looked at")])
    return taken, secrets


def _is_left(name: str) -> bool:
    return name.startswith(".") or any(fnmatch.fnmatch(name, pattern) for pattern in NOT_CODE)


def is_secret(name: str) -> bool:
    """Say whether a file is one that keys and passwords are kept in."""
    if any(fnmatch.fnmatch(name.lower(), pattern) for pattern in SECRET_FILES):
        return True
    return not name.endswith((".py", ".sh")) and redact.is_secret(name.partition(".")[0])


def holds_secret(path: Path) -> bool:
    """Say whether a secret stands in a file, whatever the file's name is: in a source only a key that its very form
    gives away, since `password = ask()` is none; in data also what a name gives away."""
    kind = path.suffix.lower()
    if kind not in DATA:
        return any(redact.KNOWN.search(piece) for piece in _pieces(path))
    is_whole = path.stat().st_size <= PIECE
    return any(secrecy.in_data(piece, kind, is_whole=is_whole) for piece in _pieces(path))


def _pieces(path: Path) -> Iterator[str]:
    """Yield a file's text in pieces; each goes on from a line, where there is one, of the last one's end."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        before = ""
        while piece := file.read(PIECE):
            yield before + piece
            before = (before + piece)[-OVERLAP:]
            before = before[before.find("\n") + 1 :]


def _require_small(found: Collection[Path], folder: Path) -> None:
    sizes = {path: (folder / path).stat().st_size for path in found}
    total = sum(sizes.values()) / MIB
    if total > MOST_MIB:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:LARGEST]
        named = ", ".join(f"{path} ({sizes[path] / MIB:.0f} MiB)" for path in largest)
        rule = f"the files of your code must come to at most {MOST_MIB} MiB (keep data elsewhere); the largest: {named}"
        raise InputError(str(folder), [Mistake("", rule, f"{total:.0f} MiB in {len(found)} files")])
