"""What is neither recorded nor shown: values whose name says that they are secret, passwords in addresses, and keys
that their form gives away. Pure; standard library only."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Collection, Iterable, Mapping

HIDDEN = "***"
SECRET = re.compile(
    r"(passwords?|passwd|passphrase|passcode|pwd|secrets?|credentials?|(?<!sa)creds?)\d*$"
)  # ends a word of a name
WEBHOOK = re.compile(r"webhooks?\d*$")  # ends a word: its address is all that it takes
PASS = re.compile(r"((?<!by)(?<!com)pass|pw)\d*$")  # ends the last word: of DB_PASS, SSHPASS
OF_ACCESS = re.compile(  # ends a name, in one word or two
    r"((api|access|account|private|secret)keys?|(api|access|auth|bearer|refresh|session|github|gitlab|slack|hf)tokens)\d*$"
)
HOLDERS = ("api", "access", "auth", "bearer", "refresh", "session", "github", "gitlab", "slack", "hf", "hub", "bot")
KEY = re.compile(r"(token|(api|access|account|auth|private|secret)keys?)\d*$|^(keys?|auth|oauth|authorization)\d*$")
MAYBE = re.compile(  # ends a name, in one word or two, of a value that looks random: WANDBKEY, MY_TOKENS, SENTRY_DSN
    r"((?<!mon)(?<!hot)(?<!tur)(?<!ibp)keys?|(?<!num)(?<!max)tokens|cookies|session(id)?|sas|dsn|signature|pem|passwrd|pswd|connectionstring)\d*$"
)
MAYBE_BEGINS = re.compile(r"pass(\d*_|$)|secret")  # begins such a name: PASS_DB, SECRETSTRING
ENDS = ("pat", "jwt", "cookie", "bearer")  # a name of several words, or of one
OF_DATA = ("sort", "group", "primary", "partition", "join", "pad", "eos", "bos", "unk", "mask", "sep", "cls", "dict")
OF_A_KEY = re.compile(r"frames?|points?|padding|mask|dims?|order|format|budget|limit")  # of KEY_FRAMES
PIN = ("pin", "otp", "totp")  # ends a name of several words
NO_PIN = re.compile(r"[A-Za-z]+|\d{1,3}(-\d{1,3})?(,\d{1,3}(-\d{1,3})?)*")  # a word, or cores: of I_MPI_PIN and CPU_PIN
_WORD, _AT, _NUMBER = r"[A-Za-z]+([._/-][A-Za-z]+)*\d{0,3}", r".*[/.~\\$].*", r"\d+(\.\d+)?[A-Za-z]{0,4}|[A-Za-z]{1,5}"
ABOUT_ONE = {  # last words, and how a value reads that is what they say: of PASSWORD_FILE, TOKEN_LENGTH
    **dict.fromkeys(("file", "path", "dir", "sock", "url"), _AT),
    **dict.fromkeys(("mode", "type", "name"), _WORD),
    **dict.fromkeys(("port", "length", "size", "bytes"), _NUMBER),
    "host": rf"{_WORD}|.*[.:].*",
}
FOLDERS = ("PWD", "OLDPWD")  # the shell's
SWITCH = re.compile(r"\d|on|off|true|false|yes|no|none|auto|", re.IGNORECASE)
SETTING = re.compile(r"-?\d{1,7}(\.\d+)?")  # no token is so short
PASSWORD = re.compile(  # with a / or an @ in it, or with a quote; no port
    r"""(://[^\s:/@"']*):(?:(?!\d{1,5}/)[^\s"']+|[^\s/]+)@"""
)
USER = re.compile(r"(://)(?=[^\s:/@]*\d)[\w.-]{20,}@")  # so long that it is a token
SENT = re.compile(  # with a request
    r"([?&](?:sig|X-Amz-Signature)=|\bauthorization:\s*(?:bearer|basic|token) +)(?!\$\w|\$?\{)[^\s&\"']+", re.IGNORECASE
)
KNOWN = re.compile(
    r"\b(hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|hooks\.slack\.com/(?:services|workflows|triggers)/[\w/]{20,}|webhook\.office\.com/[^\s\"']{20,}"
    r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[\w/-]{20,}|npm_\w{30,}|[sr]k_live_\w{16,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|pypi-[\w-]{20,}|GOCSPX-[\w-]{20,}|xapp-[\w-]{10,}|ya29\.[\w-]{20,}|dckr_pat_[\w-]{20,}|nvapi-[\w-]{20,}|AIza[\w-]{35}"
    r"|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END[A-Z ]*-----|\Z)"
)
# A name begins where no other goes on and is given up whole (`++`): a line of a megabyte takes as long as it is long.
NAME = r"(?<![\w.-])([\w.-]++)"
GIVEN = re.compile(NAME + r"""(?:["']\s*:\s*["']?|\s*==?\s*["']?)""")
VALUE = re.compile(r"""(?:Bearer |Basic )?[^\s"',;&|)}\]]++""")
NOTHING_ELSE = "????????"  # reads like no word, number, folder or switch: what can only be a secret
QUOTED = re.compile(  # a value with blanks, also within a text that is quoted itself
    rf"""{NAME}(["']\s*:\s*|\s*==?\s*)(?P<quote>\\?["'])((?:(?!(?P=quote)).)+)(?P=quote)"""
)
OPTION = re.compile(  # `--password hunter2`, `--auth='two words'`
    r"""(?<!\S)(--?([A-Za-z][\w-]*)(?:\s+|=))(?:(\\?["'])((?:(?!\3)[^\n])+)\3|(\\?["']?)([^\s"'{$-][^\s"']*))"""
)
LISTED = re.compile(  # `['--password', 'hunter2']`, as a command stands in a message and in YAML
    r"""((?<![\w-])(\\?["']|)(--?[A-Za-z][\w-]*)\2\s*,\s*)(?:(\\?["'])((?:(?!\4)[^\n])+)\4|([^\s"',\]-][^\s"',\]]*))"""
)
LOGIN = re.compile(  # `curl -u me:hunter2`, `curl -su 'me:two words'`, `curl --user me:'two words'`
    r"""(?<!\S)((?:-[uU]\s*|-[fgiIjkLNORsSvq#]{1,8}[uU]\s+|--(?:proxy-)?user(?:\s+|=))"""
    r"""(?P<quote>\\?["'])?(?P<user>[^\s:/"'$={\\]+):(?P<inner>\\?["'])?)(?!//|\$)"""
    r"""(?P<password>(?(quote)(?:(?!(?P=quote))[^\n])+|(?(inner)(?:(?!(?P=inner))[^\n])+|[^\s"']+)))"""
)
SSHPASS = re.compile(r"""(\bsshpass\s+-p\s*)(?:(\\?["'])(?:(?!\2)[^\n])*\2|(?!\$)[^\s"']+)""")
CONTAINERS = re.compile(r"\b(docker|podman|nerdctl)\b(?:\\\n|[^\n;&|])*\Z")  # their `--user` is a user and a group
LONGEST_COMMAND = 2000  # characters before a login in which one of these is looked for
HEADER = re.compile(  # of a request: `-H 'X-Api-Key: …'`
    r"""((?<![\w-])(?:-H\s*|--header(?:\s+|=))(["']?)([A-Za-z][\w-]*):\s*(?:(?:bearer|basic|token|digest|apikey)\s+)?)"""
    r"""((?:(?!\2)[^\n])+|[^\s"']+)""",
    re.IGNORECASE,
)
REFERENCE = re.compile(r"\$\w+|\$?\{\w+\}")  # to a variable, in place of its value
ANY_LOGIN = re.compile(r"[^\s:/$={]+:(?!//)[^\s$]+")  # of a user and a password, as AUTH has them
WAYS = re.compile(  # values of `--auth` that say how, not what
    r"none|basic|bearer|digest|ntlm|negotiate|kerberos|krb5|gssapi|oauth2?|oidc|saml|ldap|m?tls|ssl|token|password"
)
KEPT_IN = re.compile(r"(~|\.{1,2})?/[\w./~+-]*|[\w./~+-]+\.(pem|key|pub|crt|json|txt)")  # a file: `--private-key a.pem`
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[@!#$%^&*+=?~]")
SHORTEST_RANDOM = 8
LETTERS_A_WORD, VOWELS_A_LETTER = 2.5, 0.15  # in fewer there is no word of English
SHORTEST = 4  # characters of a value that is looked for in a text


ABSENT = (  # of what a comment says in place of a secret
    *("none", "null", "no", "yes", "unset", "empty", "missing", "required", "needed", "optional", "asked", "prompted"),
    *("here", "there", "below", "above", "later", "elsewhere", "hidden", "masked", "redacted", "secret", "private"),
    *("unused", "unknown", "default", "random", "todo", "tbd", "expired", "rotated", "removed", "encrypted", "string"),
)
COMMENTED = re.compile(NAME + r"""(\s*:\s+["']?)([^\s"',}\]]+)(?=["']?\s*([,}\]]|$))""")  # a line of YAML
SPOKEN = re.compile(r"""\b(password|passphrase|passcode|secret|token|key)(\s+(?:is|was)\s+["']?)([^\s"',]+)""", re.I)


def masked_comment(comment: str) -> str:
    """Return a comment without its secrets. It may be a line that was commented out, or prose: of a word that ends in a
    colon more can't be told than that a value is no word, or that nothing else stands there (`password: swordfish`)."""

    def given(found: re.Match[str]) -> str:
        name, sign, value = found.groups()[:3]
        is_alone = found.string.strip() == found[0].strip() and SECRET.search(name.lower())
        is_variable = "_" in name or name.isupper() or (is_alone and value.lower().rstrip(".!") not in ABSENT)
        is_hidden = (is_variable or is_no_word(value)) and is_secret(name, value)
        return f"{name}{sign}{HIDDEN}" if is_hidden and not REFERENCE.fullmatch(value) else found[0]

    def spoken(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{HIDDEN}" if is_no_word(found[3]) else found[0]

    return SPOKEN.sub(spoken, COMMENTED.sub(given, comment))


def is_no_word(value: str) -> bool:
    """Say whether a value is of letters and digits (`hunter2`), or random; a path is neither."""
    is_mixed = value.isalnum() and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return is_mixed or (not KEPT_IN.fullmatch(value) and looks_random(value))


def is_secret(name: str, value: object = None) -> bool:
    """Say whether a variable's name says that its value is secret. A number or a switch is no token: `MAX_TOKEN=128`,
    a switch no password: `TWO_PASS=1`. What a last word says that the value is, such as a file, it must read like."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    is_webhook = any(map(WEBHOOK.search, words))
    if name in FOLDERS or not words or (_is_about_one(words[-1], value) and not (is_webhook and words[-1] == "url")):
        return False
    if words[-1] == "pwd" and str(value).startswith("/"):  # a folder, as the shell's is
        return False
    if words[-1] in ("key", "token") and words[-2:-1] and words[-2] in OF_DATA:
        return False
    if any(SECRET.search(word) for word in words):
        return True
    if OF_A_KEY.fullmatch(words[-1]) and words[-2:-1] and words[-2] in ("key", "keys", "token"):
        return False
    if value is not None and SWITCH.fullmatch(str(value)):
        return False
    if words[-1] in PIN and words[-2:-1]:
        return value is None or not NO_PIN.fullmatch(str(value))
    if PASS.search(words[-1]) or OF_ACCESS.search("".join(words[-2:])):
        return True
    if (MAYBE.search("".join(words[-2:])) or MAYBE_BEGINS.match("_".join(words))) and _may_be_random(value):
        return True
    is_number = value is not None and SETTING.fullmatch(str(value))
    return not is_number and (is_webhook or words[-1] in ENDS or any(map(KEY.search, words)))


def _may_be_random(value: object) -> bool:
    text = str(value or "")
    return text == NOTHING_ELSE or (not KEPT_IN.fullmatch(text) and looks_random(text))


def _is_about_one(last: str, value: object) -> bool:
    """Say whether a name that ends so tells where a secret is, or how long, and the value reads like that."""
    return last in ABOUT_ONE and (value is None or not value or bool(re.fullmatch(ABOUT_ONE[last], str(value))))


def is_of_access(name: str) -> bool:
    """Say whether a name says by itself that a value is secret, not only that it may be: `api_key`, no `image_key`."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    if not words or words[-1] in ABOUT_ONE:
        return False
    is_token = bool(words[-2:-1]) and words[-1] == "token" and words[-2] in HOLDERS
    return is_token or any(map(SECRET.search, words)) or bool(OF_ACCESS.search("".join(words[-2:])))


def has_known(text: str) -> bool:
    """Say whether a key of a known form stands in a text, or a password or token in an address or a request."""
    if KNOWN.search(text) or SENT.search(text):
        return True
    return "@" in text and bool(PASSWORD.search(text) or USER.search(text))


def secrets(variables: Mapping[str, str], named: Collection[str] = ()) -> list[str]:
    """Return the values in an environment that nothing may say: of these names, and of those that say so."""
    return [value for name, value in variables.items() if name in named or is_secret(name, value)]


def shown(name: str, value: str) -> str:
    """Return a variable's value as it may be recorded."""
    return HIDDEN if is_secret(name, value) else masked(value)


def masked(text: str, values: Iterable[str] = ()) -> str:
    """Return a text without the secrets that can be told in it, and without these values."""
    for form in sorted({form for value in values for form in _forms(value)}, key=len, reverse=True):
        if len(form) >= SHORTEST:
            text = text.replace(form, HIDDEN)
    if "@" in text:
        text = USER.sub(rf"\1{HIDDEN}@", PASSWORD.sub(rf"\1:{HIDDEN}@", text))  # postgresql://me:***@db/sweeps
    text = KNOWN.sub(HIDDEN, SENT.sub(rf"\1{HIDDEN}", text))
    text = SSHPASS.sub(rf"\1{HIDDEN}", text)
    text = LOGIN.sub(_of_login, HEADER.sub(_of_header, text))
    text = LISTED.sub(_of_list, OPTION.sub(_of_option, text))
    return _without_given(QUOTED.sub(_of_quotes, text))


def secret_words(command: Iterable[object]) -> list[str]:
    """Return the words of a command, given as a list, that an option before them says are secret."""
    words = [str(word) for word in command]
    rows = zip(["", *words], words, words[1:], strict=False)
    options = [(f"{program} {option}", word) for program, option, word in rows if option.startswith("-")]
    return [word for before, word in options if _is_hidden_behind(before, word) and masked(word) == word]


def _is_hidden_behind(before: str, word: str) -> bool:
    return not masked(f'{before} "{word}"').endswith(f'"{word}"')


def looks_random(value: str) -> bool:
    """Say whether a value is no word or words: by its letters between changes of case, digits and signs, and by its
    vowels."""
    letters = [sign.lower() for sign in value if sign.isalpha()]
    if len(value) < SHORTEST_RANDOM or not letters:
        return False
    vowels = sum(letter in "aeiouy" for letter in letters)
    is_mixed = len(letters) < LETTERS_A_WORD * len(WORDS.findall(value))
    return is_mixed or vowels < VOWELS_A_LETTER * len(letters)


def _forms(value: str) -> set[str]:
    """Return a value as it is, and as it stands in a text that was made by Python, as JSON or as an address."""
    quoted = urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)
    escaped = repr(value)[1:-1], repr(value + "'\"")[1:-4], json.dumps(value)[1:-1]
    return {value, *quoted, *escaped, json.dumps(value, ensure_ascii=False)[1:-1]}


def _of_option(found: re.Match[str]) -> str:
    before, name, quote, phrase, mark, word = found.groups()
    if not _is_secret_option(name, phrase or word):
        return found[0]
    return f"{before}{quote}{HIDDEN}{quote}" if quote else f"{before}{mark}{HIDDEN}"


def _of_list(found: re.Match[str]) -> str:
    before, _, option, quote, phrase, word = found.groups()
    is_hidden = _is_secret_option(option.lstrip("-"), phrase or word)
    return f"{before}{quote or ''}{HIDDEN}{quote or ''}" if is_hidden else found[0]


def _is_secret_option(name: str, value: str) -> bool:
    """Judge an option as a variable of its name, but that it may also name a file or a way, and that `--key` mostly
    names a column: only one that looks random is hidden."""
    if len(name) == 1 or value.startswith("-") or REFERENCE.fullmatch(value) or not is_secret(name, value):
        return False
    words = re.findall(r"[a-z0-9]+", name.lower())
    if words[-1].startswith("key") and KEPT_IN.fullmatch(value):
        return False
    return looks_random(value) if words == ["key"] else not (words[-1] == "auth" and WAYS.fullmatch(value.lower()))


def _of_login(found: re.Match[str]) -> str:
    """Hide a login's password; of two numbers, and of a container's, it is a user and a group."""
    is_of_groups = found["user"].isdigit() and found["password"].isdigit()
    begin = max(0, found.start() - LONGEST_COMMAND)
    is_kept = is_of_groups or CONTAINERS.search(found.string, begin, found.start())
    return found[0] if is_kept or REFERENCE.fullmatch(found["password"]) else f"{found[1]}{HIDDEN}"


def _of_header(found: re.Match[str]) -> str:
    is_hidden = is_secret(found[3], found[4]) and not REFERENCE.fullmatch(found[4].strip())
    return f"{found[1]}{HIDDEN}" if is_hidden else found[0]


def _of_quotes(found: re.Match[str]) -> str:
    name, sign, quote, value = found.groups()
    is_hidden = gives_away(name, value)
    return f"{name}{sign}{quote}{HIDDEN if is_hidden else QUOTED.sub(_of_quotes, value)}{quote}"


def _without_given(text: str) -> str:
    """Return a text without the values behind names of secrets; one that is none may hold others: `a=b&token=…`."""
    kept, at = [], 0
    while found := GIVEN.search(text, at):
        kept.append(text[at : found.end()])
        at = found.end()
        if is_secret(found[1], NOTHING_ELSE):
            value = VALUE.match(text, at)
            if value and gives_away(found[1], value[0]):
                kept.append(HIDDEN)
                at = value.end()
    return "".join([*kept, text[at:]])


def gives_away(name: str, value: str) -> bool:
    """Say whether a value behind a name is secret. Behind a word of any text, `key` or `auth`, only one is that looks
    random, or is a user with a password: not `key=value`, `auth=on`."""
    word = name.lower().strip("-.")
    if word not in ("key", "auth"):
        return is_secret(name, value)
    is_login = word == "auth" and ANY_LOGIN.fullmatch(value) is not None
    return not value.startswith(("$", "{")) and is_secret(name, value) and (is_login or _may_be_random(value))
