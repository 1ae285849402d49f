"""What is neither recorded nor shown: values whose name says that they are secret, passwords in addresses, and keys
that their form gives away. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
SECRET = re.compile(
    r"(passwords?|passwd|passphrase|passcode|pwd|secrets?|credentials?|(?<!sa)creds?)\d*$"
)  # ends a word of a name
WEBHOOK = re.compile(r"webhooks?\d*$")  # ends a word: its address is all that it takes
PASS = re.compile(r"((?<!by)(?<!com)pass|pw)\d*$")  # ends the last word: of DB_PASS, SSHPASS
OF_ACCESS = re.compile(r"(api|access|account|private|secret)keys?\d*$")  # ends a name, in one word or two
KEY = re.compile(r"(token|(api|access|account|auth|private|secret)keys?)\d*$|^(keys?|auth|oauth|authorization)\d*$")
ENDS = ("pat", "jwt", "cookie", "bearer")  # a name of several words, or of one
OF_DATA = ("sort", "group", "primary", "partition", "join", "pad", "eos", "bos", "unk", "mask", "sep", "cls", "dict")
ABOUT_ONE = ("file", "path", "dir", "sock", "mode", "type", "name", "url", "host", "port", "length", "size", "bytes")
FOLDERS = ("PWD", "OLDPWD")  # the shell's
SWITCH = re.compile(r"\d|on|off|true|false|yes|no|none|auto|", re.IGNORECASE)
SETTING = re.compile(r"-?\d{1,7}(\.\d+)?")  # no token is so short
PASSWORD = re.compile(  # with a / or an @ in it, or with a quote; no port
    r"""(://[^\s:/@"']*):(?:(?!\d{1,5}/)[^\s"']+|[^\s/]+)@"""
)
USER = re.compile(r"(://)(?=[^\s:/@]*\d)[\w.-]{20,}@")  # so long that it is a token
SENT = re.compile(  # with a request
    r"([?&](?:sig|X-Amz-Signature)=|\bauthorization:\s*(?:bearer|basic|token) +)[^\s&\"']+", re.IGNORECASE
)
KNOWN = re.compile(
    r"\b(hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|hooks\.slack\.com/(?:services|workflows|triggers)/[\w/]{20,}|webhook\.office\.com/[^\s\"']{20,}"
    r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[\w/-]{20,}|npm_\w{30,}|dckr_pat_[\w-]{20,}|nvapi-[\w-]{20,}|AIza[\w-]{35}"
    r"|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
)
GIVEN = re.compile(r"""([A-Za-z_][\w.-]*)(["']\s*:\s*["']?|\s*==?\s*["']?)((?:Bearer |Basic )?[^\s"',;&|)}\]]+)""")
SHORTEST = 4  # characters of a value that is looked for in a text


def is_secret(name: str, value: object = None) -> bool:
    """Say whether a variable's name says that its value is secret. A number or a switch is no token: `MAX_TOKEN=128`,
    a switch no password: `TWO_PASS=1`."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    is_webhook = any(map(WEBHOOK.search, words))
    if name in FOLDERS or not words or (words[-1] in ABOUT_ONE and not (is_webhook and words[-1] == "url")):
        return False
    if words[-1] == "pwd" and str(value).startswith("/"):  # a folder, as the shell's is
        return False
    if words[-1] in ("key", "token") and words[-2:-1] and words[-2] in OF_DATA:
        return False
    if any(SECRET.search(word) for word in words):
        return True
    if value is not None and SWITCH.fullmatch(str(value)):
        return False
    if PASS.search(words[-1]) or OF_ACCESS.search("".join(words[-2:])):
        return True
    is_number = value is not None and SETTING.fullmatch(str(value))
    return not is_number and (is_webhook or words[-1] in ENDS or any(map(KEY.search, words)))


def shown(name: str, value: str) -> str:
    """Return a variable's value as it may be recorded."""
    return HIDDEN if is_secret(name, value) else masked(value)


def masked(text: str, values: Iterable[str] = ()) -> str:
    """Return a text without the secrets that can be told in it, and without these values."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST:
            text = text.replace(value, HIDDEN)
    text = USER.sub(rf"\1{HIDDEN}@", PASSWORD.sub(rf"\1:{HIDDEN}@", text))  # postgresql://me:***@db/sweeps
    return GIVEN.sub(_given, KNOWN.sub(HIDDEN, SENT.sub(rf"\1{HIDDEN}", text)))


def _given(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    is_word = name.lower() in ("key", "auth")  # of any text
    is_hidden = is_secret(name, value) and not is_word
    return f"{name}{sign}{HIDDEN if is_hidden else GIVEN.sub(_given, value)}"
