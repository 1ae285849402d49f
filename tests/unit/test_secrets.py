"""A secret that a user has somewhere is refused, or masked, before anything is recorded, sent or shown."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sweeps import errors
from sweeps.analysis.study import Study
from sweeps.cli import main
from sweeps.cluster import connection
from sweeps.cluster.site import Simulated
from sweeps.errors import InputError
from sweeps.record import ledger, ownership, rows
from sweeps.report.trials import again
from sweeps.run import preflight
from sweeps.run.terms import Setting, Terms
from sweeps.spec import plan, sweep_file
from sweeps.store import description
from tests.cluster.launched import PLANTED as WORD
from tests.cluster.launched import VALUES, look_for_planted
from tests.unit.records import config, record
from workers.checks import node_checkup
from workers.contract import environment, messages, ranks, redact
from workers.launch import rank
from workers.node import fingerprint

pytestmark = pytest.mark.unit

VALUE = "pl4nted-v4lue"
KNOWN = "hf_" + "abcDEF1234" * 3
TEXT = "name: x\nmodel: tiny\ndevice: cpu\nrepeats: 1\nspace:\n  batch_size: 8\n  gpus: 1\n"
SECRETS = [
    *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY", "PGPASSWORD", "MYSQL_PWD", "KEY"),
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN", "HTTP_AUTH", "GOOGLE_CREDENTIALS"),
    *("HOROVOD_SECRET_KEY", "OPENAI_APIKEY", "db.password", "apiKey"),
    *("DB_PASS", "API_KEYS", "APP_SECRETS", "HF_TOKEN1", "PASSWORD2", "KEY_PASSCODE", "AccountKey"),
    *("GITHUB_PAT", "SESSION_COOKIE", "JWT", "X_BEARER", "SSHPASS", "SMTPPASS", "LDAP_BINDPW", "DB_PW"),
    *(
        "MY_CREDS",
        "DISCORD_WEBHOOK",
        "TEAMS_WEBHOOK_URL",
        "SLACK_WEBHOOKS",
        "SLACK_WEBHOOK1",
        "SLACKWEBHOOK",
        "DBCREDS",
    ),
    *("SENTRY_PIN", "LOGIN_OTP", "API_TOKENS", "HF_TOKENS", "SLACK_TOKENS", "SECRET_KEY_FORMAT", "API_KEY_PROD"),
    *("TOKENS", "MY_TOKENS", "COOKIES", "PASS_DB", "SECRETSTRING", "CONNECTION_STRING", "AZURE_SAS", "SENTRY_DSN"),
    *("SESSION_ID", "AWS_SESSION", "SIGNATURE", "PRIVATE_PEM", "WANDBKEY", "MASTERKEY", "DB_PSWD", "PASSWRD"),
    *("DB_PASSWORD_PORT", "TOKEN_LENGTH", "PASSWORD_FILE", "DB_PASSWORD_HOST", "SECRET_NAME", "AUTH_TOKEN_URL"),
]
SETTINGS = [
    *("TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "PWD", "PIN_MEMORY", "PIN", "SPIN", "MONKEY"),
    *("KEYBOARD", "KEY_FRAMES", "KEY_PADDING", "KEY_FORMAT", "NUM_TOKENS", "AUTHOR", "MAX_TOKENS"),
    *("TF_XLA_FLAGS", "HOROVOD_CYCLE_TIME", "_"),
    *("xla_dump_hlo_pass_re", "PASSES", "SORT_KEY", "PAD_TOKEN", "PATH", "COMPAT", "NCCL_BYPASS", "COMPASS"),
    *("STEP_W", "TOP_W", "SACRED", "HOOKS"),
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_says_that_its_value_is_secret(name: str) -> None:
    assert redact.is_secret(name, VALUE)
    assert redact.shown(name, VALUE) == redact.HIDDEN
    assert VALUE not in redact.masked(f"{name}={VALUE} {json.dumps({name: VALUE})}") or name == "KEY"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_name_that_only_sounds_like_a_secret_is_none(name: str) -> None:
    assert redact.shown(name, VALUE) == VALUE
    assert redact.masked(f"{name}={VALUE}") == f"{name}={VALUE}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("MAX_TOKEN", "128"), ("HOROVOD_CACHE_KEY", "1"), ("HTTP_AUTH", "off")),
        *(("WEBHOOK_ENABLED", "1"), ("WEBHOOK_RETRIES", "3")),
    ],
)
def test_a_number_or_a_switch_is_no_key(name: str, value: str) -> None:
    assert not redact.is_secret(name, value)
    assert redact.is_secret("PASSWORD", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("DB_PASSWORD_HOST", "db-1.example.org:5432"), ("DB_PASSWORD_HOST", "postgres2"), ("AUTH_HOST", "[::1]:80")),
        *(("PASSWORD_FILE", "/run/secrets/db"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")),
        *(("RAY_AUTH_TOKEN_PATH", "keys/token.txt"), ("SSH_AUTH_SOCK", "/run/agent.sock"), ("WEBHOOK_PATH", "/in")),
        *(("RAY_AUTH_MODE", "token"), ("TOKEN_TYPE", "sha256"), ("SECRET_NAME", "db-creds"), ("WEBHOOK_PORT", "8080")),
        *(("TOKEN_LENGTH", "128"), ("KEY_SIZE", "4096"), ("PASSWORD_LENGTH", "auto"), ("PASSWORD_FILE", "")),
        *(("TOKEN_URL", "https://example.org/oauth"), ("CPU_PIN", "0-3,8"), ("I_MPI_PIN", "enable"), ("X_PIN", "1")),
        *(
            ("SESSION_ID", "training-3"),
            ("SSL_PEM", "/etc/ssl/x1.pem"),
            ("DSN", "sweeps"),
        ),
        *(("MAX_TOKENS", "4096"), ("KEY_FRAMES", "all"), ("TOKENIZERS_PARALLELISM", "true")),
    ],
)
def test_a_value_that_is_what_the_last_word_of_its_name_says_is_shown(name: str, value: str) -> None:
    assert redact.shown(name, value) == value
    assert redact.masked(f"{name}={value}") == f"{name}={value}"


@pytest.mark.parametrize("value", ["4829", "482910", "48-29-10", "7f3k"])
def test_a_pin_of_digits_is_secret_though_a_number_is_no_token(value: str) -> None:
    assert redact.shown("SENTRY_PIN", value) == redact.HIDDEN


@pytest.mark.parametrize(("name", "value"), [("DB_PASS", "482910"), ("API_KEY", "1234567"), ("SSHPASS", "2024")])
def test_a_password_may_be_a_number_and_a_switch_is_none(name: str, value: str) -> None:
    assert redact.is_secret(name, value)
    assert not redact.is_secret("TWO_PASS", "1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://me:{VALUE}@db/x?sslmode=on", "postgresql://me:***@db/x?sslmode=on"),
        ("postgresql://me:it's@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:p/4@n+t=@db/x and u@v", "postgresql://me:***@db/x and u@v"),
        ('{"a": "mysql://root:a+b/c=@h/db", "b": "u@v"}', '{"a": "mysql://root:***@h/db", "b": "u@v"}'),
        (f"postgresql://db/x?user=me&password={VALUE}&a=b", "postgresql://db/x?user=me&password=***&a=b"),
        (f"curl -H 'Authorization=Bearer {VALUE}'", "curl -H 'Authorization=***'"),
        (f"curl -H 'Authorization: Bearer {VALUE}' h", "curl -H 'Authorization: Bearer ***' h"),
        (f"https://a.blob/c?sv=1&sig={VALUE}&b=c", "https://a.blob/c?sv=1&sig=***&b=c"),
        (f"# mine is {KNOWN}, keep it", "# mine is ***, keep it"),
        ("-----BEGIN RSA PRIVATE KEY----- MIIE", "***"),
        (f"a key ASIA{'Q2' * 8} of a session", "a key *** of a session"),
        (f"nvapi-{'x' * 40}", "***"),
        (f"sk_live_{'x' * 24} rk_live_{'x' * 24} SG.{'x' * 22}.{'y' * 43}", "*** *** ***"),
        (f"pypi-{'x' * 50} GOCSPX-{'x' * 28} xapp-1-A0-1-{'x' * 30} ya29.{'x' * 50}", "*** *** *** ***"),
        ("KeyError: 'batch_size' of key=value, auth=on", "KeyError: 'batch_size' of key=value, auth=on"),
        (f"env.HF_TOKEN == '{VALUE}'", "env.HF_TOKEN == '***'"),
        (f"git clone https://{'a1b2' * 8}@host/x.git", "git clone https://***@host/x.git"),
        (f"https://{'0f' * 16}@o1.ingest.sentry.io/7", "https://***@o1.ingest.sentry.io/7"),
        ("ssh://a-user-with-a-long-name@host/x", "ssh://a-user-with-a-long-name@host/x"),
        (f"https://hooks.slack.com/services/T0/B0/{'x' * 24}", "https://***"),
        (f"https://hooks.slack.com/workflows/T0/A0/1/{'x' * 24}", "https://***"),
        (f"https://discord.com/api/v10/webhooks/1/{'x' * 24} said 404", "https://*** said 404"),
        (f"'https://x.webhook.office.com/webhookb2/{'x' * 24}@1/IncomingWebhook/2'", "'https://x.***'"),
        (f"train.py --password {VALUE} --lr 1", "train.py --password *** --lr 1"),
        (f"train.py --api-key '{VALUE}'", "train.py --api-key '***'"),
        (f"train.py --auth {VALUE} --auth-token={VALUE}", "train.py --auth *** --auth-token=***"),
        (f"train.py --access-key {VALUE} --private-key '{VALUE}'", "train.py --access-key *** --private-key '***'"),
        (f"sshpass -p {VALUE} ssh a sshpass -p'{VALUE}' ssh b", "sshpass -p *** ssh a sshpass -p*** ssh b"),
        ("sshpass -p $HELD ssh a", "sshpass -p $HELD ssh a"),
        ("train.py --password 'two words' --lr 1", "train.py --password '***' --lr 1"),
        ("train.py --key qZ7xW2mN9vB4kP", "train.py --key ***"),
        ("train.py --auth basic --key column", "train.py --auth basic --key column"),
        ("ssh --private-key ~/.ssh/id_rsa --api-key $API_KEY", "ssh --private-key ~/.ssh/id_rsa --api-key $API_KEY"),
        (f"curl -u me:{VALUE} --user you:{VALUE} h", "curl -u me:*** --user you:*** h"),
        ("curl -u $ME:$PW -u me:$PW -u me h", "curl -u $ME:$PW -u me:$PW -u me h"),
        ("docker run --user me:staff -u 1000:1000 x", "docker run --user me:staff -u 1000:1000 x"),
        ("id -u 1000:1000", "id -u 1000:1000"),
        (f"curl -H 'X-Api-Key: {VALUE}' -H \"Cookie: a={VALUE}\"", "curl -H 'X-Api-Key: ***' -H \"Cookie: ***\""),
        (f"curl --header 'Authorization: Digest {VALUE}' h", "curl --header 'Authorization: Digest ***' h"),
        (f"curl --header='PRIVATE-TOKEN: {VALUE}' h", "curl --header='PRIVATE-TOKEN: ***' h"),
        ("curl -H 'Accept: text/html' -H 'X: y'", "curl -H 'Accept: text/html' -H 'X: y'"),
        ("curl -H 'Authorization: Bearer $HF_TOKEN'", "curl -H 'Authorization: Bearer $HF_TOKEN'"),
        (f"failed: ['train.py', '--password', '{VALUE}', '-v']", "failed: ['train.py', '--password', '***', '-v']"),
        (f'["--auth-token", "two {VALUE}"]', '["--auth-token", "***"]'),
        (f"[train.py, --password, {VALUE}, --lr, 1]", "[train.py, --password, ***, --lr, 1]"),
        ("['--password', '--lr', '1']", "['--password', '--lr', '1']"),
        ("no entry: PASSWORD='my secret phrase' A='b c'", "no entry: PASSWORD='***' A='b c'"),
        ('{"DB_PASSWORD": "my secret phrase", "A": "b c"}', '{"DB_PASSWORD": "***", "A": "b c"}'),
        ("A=\"PASSWORD='my secret phrase' x\"", "A=\"PASSWORD='***' x\""),
        (f"train.py -wandb_token {VALUE}", "train.py -wandb_token ***"),
        ("sort --key 2 --token-length 128 --pass {passes}", "sort --key 2 --token-length 128 --pass {passes}"),
        ("a dash - password of mine", "a dash - password of mine"),
        ("curl -u me:12345678 h; curl --user admin:2024 h", "curl -u me:*** h; curl --user admin:*** h"),
        (f"curl -su me:{VALUE} h", "curl -su me:*** h"),
        (f"curl -u 'me:two {VALUE}' -u me:'two {VALUE}' h", "curl -u 'me:***' -u me:'***' h"),
        (f'"curl -u \\"me:two {VALUE}\\" h"', '"curl -u \\"me:***\\" h"'),
        (f"docker pull x && curl -u me:{VALUE} h", "docker pull x && curl -u me:*** h"),
        (f"docker pull x\ncurl -u me:{VALUE} h", "docker pull x\ncurl -u me:*** h"),
        ("docker run \\\n --user me:staff x", "docker run \\\n --user me:staff x"),
        ("torch -gpu cuda:0 -gpus:4", "torch -gpu cuda:0 -gpus:4"),
        (f'--password \\"{VALUE}\\" -v', '--password \\"***\\" -v'),
        (f'[\\"--password\\", \\"two {VALUE}\\"]', '[\\"--password\\", \\"***\\"]'),
        (f'sshpass -p \\"{VALUE}\\" ssh', "sshpass -p *** ssh"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nb+/=\n-----END RSA PRIVATE KEY-----\nb", "a\n***\nb"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQdG\n-----END PGP PRIVATE KEY BLOCK----- b", "*** b"),
        (
            '{"k": "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n", "a": 1}',
            '{"k": "***\\n", "a": 1}',
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nof a log that was cut", "***"),
        ("https://h/c?key=qZ7xW2mN9vB4kP&a=b", "https://h/c?key=***&a=b"),
        ("env KEY=qZ7xW2mN9vB4kP train.py key='qZ7xW2mN9vB4kP'", "env KEY=*** train.py key='***'"),
        (f"env AUTH=me:{VALUE} x", "env AUTH=*** x"),
        ('{"username": "me", "key": "0f1e2d3c4b5a69788796a5b4c3d2e1f0"}', '{"username": "me", "key": "***"}'),
        (
            "key=conv1:bias AUTH=$AUTH key=a/b2/c3d4.json SORT_KEY=name",
            "key=conv1:bias AUTH=$AUTH key=a/b2/c3d4.json SORT_KEY=name",
        ),
        ("MY_PWD=/home/me", "MY_PWD=/home/me"),
        (f"MY_PWD={VALUE}", "MY_PWD=***"),
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert redact.masked(text) == shown
    assert redact.masked(shown) == shown


@pytest.mark.parametrize(
    "value", ["a\tpl4nted", "it's pl4nted", 'my "q" pl4nted', "line\npl4nted", "p@ss/pl4nted w", "ü pl4nted"]
)
def test_a_value_is_hidden_however_a_text_quotes_it(value: str) -> None:
    texts = [repr({"A": value}), json.dumps({"A": value}), repr(value + "'"), urllib.parse.quote(value)]
    texts += [urllib.parse.quote_plus(value), json.dumps(value, ensure_ascii=False)]
    assert [text for text in texts if "pl4nted" in redact.masked(text, [value])] == []


PLANTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "space.env.HF_TOKEN": (f"{TEXT}  env: {{HF_TOKEN: {VALUE}}}\n", ()),
    "space.env.WANDB_API_KEY": (f"{TEXT}  env:\n    WANDB_API_KEY:\n      - 1\n      - {VALUE}\n", ()),
    "space.env.DB_PASSWORD": (f"{TEXT}  env: {{DB_PASSWORD: {{points: [{VALUE}], when: gpus > 1}}}}\n", ()),
    "space.env.A_SECRET": (TEXT, (f"env.A_SECRET={VALUE}",)),
    "HF_TOKEN": (TEXT, (f"HF_TOKEN={VALUE}",)),
    "env_from.HF_TOKEN": (f"{TEXT}env_from: {{HF_TOKEN: {VALUE}}}\n", ()),
    "line 8": (f"{TEXT}env_from: [HF_TOKEN={VALUE}]\n", ()),
    "line 1": (f"# export HF_TOKEN={VALUE}\n{TEXT}", ()),
    "line 3": (TEXT.replace("cpu\n", f"cpu  # {{DB_PASSWORD: {VALUE}}}\n"), ()),
    "line 7": (TEXT.replace("  gpus: 1\n", f"  #   HF_TOKEN: '{VALUE}'\n  gpus: 1\n"), ()),
    "line 2": (f"# of mine\n# db Password: pl4ntedv4lue\n{TEXT}", ()),
    "line 4": (f"# a\n# b\n# c\n# token: a8f7d6e5c4\n{TEXT}", ()),
    "line 9": (f"{TEXT}  env:\n    PROXY: http://me:{VALUE}@proxy\n", ()),
    "line 10": (f"{TEXT}  env:\n    A: 1\n    ANYTHING: {KNOWN}\n", ()),
    "line 11": (f"{TEXT}\n\n\ndata: s3://me:{VALUE}@bucket/images\n", ()),
    "run": (f"{TEXT}run:\n  - train.py\n  - --password\n  - {VALUE}\n", ()),
    "line 13": (f"{TEXT}\n\n\n\n\nrun: curl -u me:{VALUE} http://h/x\n", ()),
    "line 14": (f"{TEXT}\n\n\n\n\nrun: >-\n  curl -H 'X-Api-Key: {VALUE}' h\n", ()),
    "line 15": (f"{TEXT}\n\n\n\n\n\n\nrun: train.py --auth {VALUE}\n", ()),
    "line 12": (f"{TEXT}\n\n\n\nrun: python train.py --password {VALUE}\n", ()),
    "--set": (TEXT, (f"data=s3://me:{VALUE}@bucket/images",)),
}
RUN = TEXT.replace("model: tiny\n", "").replace("  batch_size: 8\n", "")
ELSEWHERE = {  # in what a line means, and not in the line
    "folded": f"run: >-\n  python train.py --password\n  {VALUE}\n",
    "plain, of two lines": f"run: python train.py --password\n  {VALUE}\n",
    "a tab": f'run: "train.py --password\\t{VALUE}"\n',
    "escaped letters": f'run: "train.py --p\\x61ssword {VALUE}"\n',
    "escaped quotes": f'run: "curl -u \\"me:{VALUE}\\" h"\n',
    "doubled quotes": f"run: 'train.py --password ''{VALUE} two'''\n",
    "a list of sshpass": f"run: [sshpass, -p, {VALUE}, ssh, h]\n",
    "a list of curl": f"run: [curl, -u, 'me:two {VALUE}', h]\n",
    "a list in a list": f"run: [[train.py, --password], [--api-key, {VALUE}]]\n",
    "a key of a section": f'space:\n  env: {{"train.py --p\\x61ssword {VALUE}": 1}}\n',
    "a login of digits": f"run: curl -u me:12345678 {VALUE}\n",
    "a clustered login": f"run: curl -su me:{VALUE} h\n",
    "a login of two words": f"run: curl -u 'me:{VALUE} {VALUE}' h\n",
    "escaped quotes of an option": f'run: "train.py --password \\"{VALUE}\\""\n',
    "a key in an address": f"data: https://h/c?key={VALUE}\n",
}


@pytest.mark.parametrize("text", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("is_set", [False, True])
def test_a_secret_is_found_in_what_a_file_means_and_not_only_in_its_lines(text: str, is_set: bool) -> None:
    given = () if not is_set or "\n" in text[:-1] else (text.strip().replace(": ", "=", 1),)
    with pytest.raises(InputError, match="must not hold a secret") as refused:
        sweep_file.parse(RUN if given else text if text.startswith("space") else f"{RUN}{text}", "x.yaml", given)
    for part in (VALUE, "pl4nted", "v4lue", "12345678"):
        assert part not in str(refused.value)


def test_an_override_that_another_one_hides_may_hold_no_secret_either() -> None:
    given = (f'run="train.py --p\\x61ssword {VALUE}"', "run=train.py")
    with pytest.raises(InputError, match="x: --set: must not hold a secret") as refused:
        sweep_file.parse(RUN, "x", given)
    assert VALUE not in str(refused.value)


COMMANDS = (
    *(
        "python train.py --password {}",
        "curl -u 'me:{}' http://h/x",
        'curl --user "me:{}" http://h/x',
        "DB_PASS='{}' a b",
    ),
    *("sshpass -p '{}' ssh h", 'train.py --lr 1 --api-key "{}" --more', "curl -H 'X-Api-Key: {}' h"),
)


@given(
    command=st.sampled_from(COMMANDS),
    word=st.text("bcdfghjkqvwxz2345+.", min_size=8, max_size=12),
    is_of_two=st.booleans(),
    style=st.sampled_from([None, "'", '"', "|", ">"]),
    width=st.integers(8, 80),
)
def test_a_secret_is_refused_and_not_shown_however_yaml_writes_it(
    command: str, word: str, is_of_two: bool, style: str | None, width: int
) -> None:
    is_quoted = "'{" in command or '"{' in command or ":{}'" in command
    text = command.format(f"{word} {word[::-1]}" if is_of_two and is_quoted else word)
    written = yaml.dump({"run": text}, default_style=style, width=width)
    with pytest.raises(InputError, match="must not hold a secret") as refused:
        sweep_file.parse(RUN + written, "x")
    assert word not in str(refused.value)
    assert word[::-1] not in str(refused.value)
    (trial,) = plan.plan(sweep_file.parse(RUN + written + "items: 1\n", "x", is_recorded=True)).trials
    facts = ledger.SweepFacts(
        name="x", id="0", study="x", created_at=0.0, file=RUN + written, overrides=(), trials=(trial,)
    )
    assert word not in description.write(facts), "of a ledger of before such a file was refused"


@pytest.mark.parametrize("place", PLANTED)
def test_a_secret_in_a_sweep_file_is_refused_by_its_place_and_not_shown(place: str) -> None:
    text, overrides = PLANTED[place]
    with pytest.raises(InputError) as refused:
        sweep_file.parse(text, "x.yaml", overrides)
    said = str(refused.value)
    assert said.startswith(f"x.yaml: {place}: must not hold a secret")
    assert said.count("must not hold a secret") == 1, "once, and not again by its key"
    assert redact.HIDDEN in said
    assert "env_from" in said
    assert VALUE not in said
    assert KNOWN not in said


@pytest.mark.parametrize("place", PLANTED)
@pytest.mark.parametrize("command", ["plan", "run", "submit"])
def test_no_command_begins_with_a_secret(
    place: str, command: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, overrides = PLANTED[place]
    Path("x.yaml").write_text(text)
    put = ["--set", *overrides] if overrides else []
    afar = ["--address", "http://127.0.0.1:9"] if command == "submit" else []
    assert main.main([command, "x.yaml", *put, *afar]) == 2
    said = capsys.readouterr()
    assert "must not hold a secret" in said.err
    assert VALUE not in said.err + said.out
    assert [path.name for path in workplace.iterdir()] == ["x.yaml"]


SECRET_COMMENTS = [
    *("password: swordfish", "db_password: 'swordfish'", "Passphrase: correcthorse", "secret: tr0ub4dor"),
    *("the password is xKqZpWmNvB", "my token was qzxvkwpjtr", "token: AbCdEfGhIjKl", "use the password: p@s!w#rd"),
    *("PASSWORD: swordfish", "api_key: swordfishes", "HF_TOKEN=swordfish", "curl -u me:swordfish http://h"),
    *("train.py --password swordfish", "the token is a8f7d6e5c4", "PASSWORD='sword fish'"),
]
PROSE = [
    *("HF_TOKEN: comes from the node", "the secret: larger batches", "MAX_TOKEN: 128", "the secret: patience"),
    *("the password is in ~/.netrc", "token: see docs", "Password: asked for", "password: none", "Secret: required."),
    *("the secret is normalization", "the token is BatchNormalization", "the key is bottleneck", "password: prompted"),
    *("token: optional", "the secret of its speed: fusion", "key: value", "author: swordfish", "keyboard: qwertz"),
    *("the password is set on every node", "a token is a word", "the key was rhythm", "passes: three"),
    *("docker run --user me:staff", "curl -H 'Accept: all'", "sort --key column", "password: $PASSWORD"),
]


@pytest.mark.parametrize("comment", SECRET_COMMENTS)
def test_a_comment_must_hold_no_secret_with_or_without_a_digit(comment: str) -> None:
    with pytest.raises(InputError, match="line 1: must not hold a secret") as refused:
        sweep_file.parse(f"# {comment}\n{TEXT}", "x")
    assert not [word for word in ("swordfish", "correct", "xKqZ", "qzxv", "AbCd", "p@s", "fish", "a8f7", "tr0") if
                word in str(refused.value)]  # fmt: skip


@pytest.mark.parametrize("comment", PROSE)
def test_a_comment_may_speak_of_secrets(comment: str) -> None:
    assert sweep_file.parse(f"# {comment}\n{TEXT}", "x")


def test_what_is_recorded_already_can_still_be_read() -> None:
    text, _ = PLANTED["space.env.HF_TOKEN"]
    assert sweep_file.parse(text, "x", is_recorded=True).space.env


def test_a_ledger_of_before_secrets_were_refused_is_shown_without_them() -> None:
    text = f"{TEXT}  env:\n    OMP_NUM_THREADS: 1\n    HF_TOKEN:\n      - {VALUE}\n"
    overrides = (f"space.env.WANDB_API_KEY={VALUE}",)
    (trial,) = plan.plan(sweep_file.parse(text, "x", overrides, is_recorded=True)).trials
    assert trial.env["HF_TOKEN"] == trial.env["WANDB_API_KEY"] == VALUE, "the ranks have it"
    facts = ledger.SweepFacts(
        name="x", id="0", study="x", created_at=0.0, file=text, overrides=overrides, trials=(trial,)
    )
    shown = description.write(facts) + str(again(Study(facts, (record(trial),)))) + str(rows.row(record(trial)))
    assert VALUE not in shown
    assert shown.count("OMP_NUM_THREADS") >= 3


def test_a_mistake_beside_a_secret_does_not_show_it() -> None:
    with pytest.raises(InputError) as refused:
        sweep_file.parse(f"{TEXT}  env: {{HF_TOKEN: [{{a: {VALUE}}}]}}\nnonsense: 1\n", "x.yaml")
    assert VALUE not in str(refused.value)
    with pytest.raises(InputError) as refused:
        sweep_file.parse(TEXT, "x.yaml", (f"env.HF_TOKEN={VALUE}: {{",))
    assert VALUE not in str(refused.value)


def test_a_value_that_is_cut_is_masked_before() -> None:
    text = f"train.py --steps 100 --batch 8 --password 'two words and {VALUE} of mine'"
    assert errors.shown(text) == "train.py --steps 100 --batch 8 --password '***'"
    with pytest.raises(InputError) as refused:
        sweep_file.parse(text, "x")
    assert "two" not in str(refused.value)


def test_variables_of_the_nodes_are_named_in_a_file_and_reach_the_ranks_as_names() -> None:
    made = sweep_file.parse(f"{TEXT}  env: {{A: [1, 2]}}\nenv_from: [HF_TOKEN, NCCL_DEBUG]\n", "x")
    one, other = plan.plan(made).trials
    assert one.env_from == other.env_from == ("HF_TOKEN", "NCCL_DEBUG")
    assert messages.trial_config(json.loads(json.dumps(messages.to_json(one)))) == one
    assert sweep_file.parse(f"{TEXT}env_from: HF_TOKEN\n", "x").env_from == ("HF_TOKEN",)


def test_a_cell_without_such_variables_is_named_as_before() -> None:
    plain, named = config(), plan.plan(sweep_file.parse(f"{TEXT}env_from: [A]\n", "x")).trials[0]
    older = {key: value for key, value in messages.to_json(plain).items() if key != "env_from"}
    assert messages.trial_config(older).cell == plain.cell
    assert named.cell != plain.cell


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("env_from: [A, A]", "each once"),
        ("env_from: {A: 1}", "must be names of variables"),
        ("env_from: [1]", "must be names of variables"),
        ("env_from: [A B]", "letters, digits and '_'"),
        ("env_from: [CUDA_VISIBLE_DEVICES]", "is set by the placement"),
        ("env_from: [A]\nmodel: tiny", "left out of one of the two"),
    ],
)
def test_a_name_that_can_mean_nothing_is_a_mistake(line: str, says: str) -> None:
    text = TEXT.replace("model: tiny\n", "") + "  env: {A: 1}\n" + line
    with pytest.raises(InputError, match=says):
        sweep_file.parse(text if "model" in line else f"{text}\nmodel: tiny", "x")


class Two(Simulated):
    """Two nodes, one of which lacks a variable."""

    def unset(self, variables: Sequence[str], late: object) -> dict[str, list[str]]:
        return {"n1": [], "n2": [name for name in variables if name == "HF_TOKEN"]}


def test_a_variable_that_a_node_lacks_is_found_before_the_sweep() -> None:
    made = sweep_file.parse(f"{TEXT}env_from: [HF_TOKEN, OTHER]\n", "x")
    with pytest.raises(InputError) as refused:
        preflight.check_variables(made, Setting(Terms(), Two(()), Console(), "x.yaml"), print)
    assert str(refused.value) == (
        "x.yaml: env_from: must be set on every node where Ray is started, but not on n2, but got HF_TOKEN"
    )


def test_a_node_says_which_variables_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", VALUE)
    monkeypatch.setenv("EMPTY", "")
    assert node_checkup.unset(["A", "EMPTY", "NOWHERE"]) == ["EMPTY", "NOWHERE"]


def test_what_was_in_force_holds_no_value_of_a_nodes_variable() -> None:
    trial = plan.plan(sweep_file.parse(f"{TEXT}  env: {{A: 1}}\nenv_from: [MINE]\n", "x")).trials[0]
    environ = {"A": "1", "MINE": VALUE, "HOROVOD_SECRET_KEY": VALUE, "NCCL_X": f"http://me:{VALUE}@h", "HF_TOKEN": "t"}
    told = environment.in_force(environ, trial)
    assert told == {"A": "1", "HOROVOD_SECRET_KEY": "***", "MINE": "***", "NCCL_X": "http://me:***@h"}
    assert VALUE not in str(fingerprint.software(environ)["environment"])


def test_a_node_tells_no_value_of_a_variable_that_a_sweep_takes_from_it() -> None:
    named = {"TF_SITE": VALUE, "NCCL_SITE": VALUE, "LD_PRELOAD_X": VALUE}
    facts = fingerprint.software({**named, "NCCL_DEBUG": "WARN"})
    told = fingerprint.told(facts, (*named, "NOT_HERE"))
    assert VALUE not in str(told)
    assert told["environment"] == {**dict.fromkeys(named, redact.HIDDEN), "NCCL_DEBUG": "WARN"}
    assert told["digest"] == fingerprint.told(facts, ())["digest"] == fingerprint.digest(facts), "the ranks' too"
    assert told["digest"] != fingerprint.digest(
        fingerprint.software({**named, "NCCL_DEBUG": "WARN", "TF_SITE": "another"})
    )
    assert fingerprint.told({"python": "3"}, ()) == {"digest": fingerprint.digest({"python": "3"}), "python": "3"}


@pytest.fixture
def rank_of(tmp_path: Path) -> Any:
    """Runs a rank that raises what it is given; what it said, and its log."""

    def ran(named: Sequence[str], **variables: str) -> tuple[dict[str, Any], str]:
        trial = {**messages.to_json(config()), "env_from": list(named)}
        seat = messages.to_json(ranks.Seat(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1,
                                          host="h"))  # fmt: skip
        order = {"config": trial, "env": {}, "log": str(tmp_path / "rank.log"), "software": {"code": "c"},
                 "seat": seat, "entry": "raises:run"}  # fmt: skip
        (tmp_path / "raises.py").write_text("import os\ndef run(*_): raise OSError('no entry for', dict(os.environ))\n")
        ours, theirs = socket.socketpair()
        beat = os.memfd_create("beat")
        os.ftruncate(beat, ranks.BEAT.size)
        (tmp_path / "order.json").write_text(json.dumps(order))
        ends = f"{theirs.fileno()}, {beat}"
        run = f"import json; from workers.launch import rank; rank.main(json.load(open('order.json')), {ends})"
        path = os.pathsep.join([str(Path(rank.__file__).parents[2]), str(tmp_path)])
        subprocess.run([sys.executable, "-c", run], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path} | variables,
                       pass_fds=[theirs.fileno(), beat], check=False)  # fmt: skip
        theirs.close()
        os.close(beat)
        with ours:
            heard = b""
            while chunk := ours.recv(1 << 16):
                heard += chunk
        return json.loads(heard), (tmp_path / "rank.log").read_text()

    return ran


def test_a_rank_that_lacks_a_variable_fails_in_words(rank_of: Any) -> None:
    said, _ = rank_of(["NOT_HERE"])
    assert (said["say"], said["kind"]) == ("failed", "variable not set")
    assert said["message"].startswith(f"NOT_HERE must be set on {os.uname().nodename} where Ray is started")


def test_a_rank_that_fails_says_no_secret_of_its_environment(rank_of: Any) -> None:
    said, log = rank_of(
        ["MINE"], MINE=VALUE, HF_TOKEN=KNOWN, MLFLOW_TRACKING_URI=f"http://me:{VALUE}2@h", PLAIN="plain"
    )
    assert said["say"] == "failed"
    for told in (said["message"], log):
        assert "'PLAIN': 'plain'" in told
        assert "'MINE': '***'" in told
        assert VALUE not in told
        assert KNOWN not in told


class Jobs:
    """Stands in for a cluster's: remembers all that is sent to it."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def list_jobs(self) -> list[Any]:
        return []

    def submit_job(self, **job: Any) -> None:
        self.sent.append(json.dumps(job))
        if folder := job["runtime_env"].get("working_dir"):
            self.sent += [path.read_text() for path in Path(folder).rglob("*") if path.is_file()]

    def get_job_status(self, _: str) -> str:
        return "SUCCEEDED"

    def get_job_logs(self, _: str) -> str:
        return "sweep|b|x\nsweep|x|0\n"

    def delete_job(self, _: str) -> None: ...


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    made = Jobs()
    monkeypatch.setattr(connection, "client", lambda url: contextlib.nullcontext(made))
    return made


def test_nothing_of_the_environment_is_sent_to_a_cluster(
    jobs: Jobs, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, VALUE)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://me:{VALUE}@db/x")
    Path("x.yaml").write_text(f"{TEXT}env_from: [HF_TOKEN]\n")
    Path(".env").write_text(VALUE)
    url = f"http://me:{VALUE}@head:8265"
    assert main.main(["submit", "x.yaml", "--set", "seed=1", "--address", url]) == 0
    assert main.main(["trials", "x", "--address", url]) == 0
    told = capsys.readouterr()
    assert "HF_TOKEN" in "".join(jobs.sent)
    assert VALUE not in "".join(jobs.sent)
    assert VALUE not in told.out + told.err


@pytest.mark.parametrize(
    "asked",
    [
        ["trials", "x", "--store", f"postgresql://me:{VALUE}@db/x"],
        ["trials", "x", f"--store=postgresql://db/x?password={VALUE}"],
        ["trials", "x", "--where", f"env.HF_TOKEN == '{VALUE}'"],
        ["list", "--store", f"http://me:{VALUE}@mlflow"],
    ],
)
def test_no_secret_is_part_of_a_jobs_command(jobs: Jobs, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*asked, "--address", "http://head:8265"]) == 2
    assert not jobs.sent
    said = capsys.readouterr().err
    assert "must hold no secret" in said
    assert VALUE not in said


def test_a_trials_row_has_the_names_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", VALUE)
    text = f"{TEXT}env_from: [HF_TOKEN]\n"
    planned = plan.plan(sweep_file.parse(text, "x"))
    book = ownership.create(planned, text)
    book.write(record(planned.trials[0]))
    book.end("complete")
    written = book.paths.ledger.read_text()
    assert '"env_from":["HF_TOKEN"]' in written
    assert VALUE not in written + str(rows.row(ledger.read("x").trials[0]))


@pytest.mark.parametrize("value", VALUES)
def test_the_look_through_the_folders_of_hosts_finds_each_value_that_is_planted_there(
    value: str, tmp_path: Path
) -> None:
    """The hosts themselves take root: `tests/cluster/test_hosts.py`."""
    apart, since, there = tmp_path / "hosts", tmp_path / "key", tmp_path / "tmp/a b/c"
    for path in (apart, there):
        path.mkdir(parents=True)
    (tmp_path / "tmp/before").write_text(f"{WORD}-{value}")
    since.touch()
    os.utime(tmp_path / "tmp/before", (1, 1))
    os.utime(since, (2, 2))
    (apart / "environment").write_text(f"{WORD}-{value}")
    (there / "another").write_text(f"{WORD}-else")
    look = look_for_planted([str(tmp_path)], apart, since)
    assert subprocess.run(look, shell=True, capture_output=True, text=True, check=True).stdout == ""
    (there / "leak").write_bytes(b"\0\xff" + f"A={WORD}-{value}".encode())
    assert subprocess.run(look, shell=True, capture_output=True, text=True, check=True).stdout == f"{there}/leak\n"


LINES = {  # each may stand in a log: a digest, an image in a page, options, pairs, addresses
    "digest": "3f9a",
    "base64": "Qk2-Hx_9a",
    "options": "--a ",
    "pairs": "a=",
    "quotes": "a='",
    "quotes in quotes": 'a=\\"',
    "addresses": "://a",
    "headers": "-Ha",
    "dashes": "-",
    "blanks": " ",
    "logins": "-u 7:1 -u 1:2 ",
    "ends of keys": "-----END PRIVATE KEY-----",
    "beginnings of keys": "-----BEGIN PRIVATE KEYS ",
    "keys": "key=a ",
}


@pytest.mark.parametrize("part", LINES.values(), ids=LINES)
def test_four_times_the_line_takes_at_most_eight_times_as_long(part: str) -> None:
    """Sixteen times would be its square: a rank that ends behind a line of a megabyte held up its trial for hours."""

    def quickest(signs: int) -> float:
        text, taken = part * (signs // len(part)), []
        for _ in range(5):
            began = time.process_time()
            assert redact.masked(text) == text
            taken.append(time.process_time() - began)
        return min(taken)

    assert quickest(80_000) <= 8 * quickest(20_000)


@pytest.mark.parametrize("part", [f"curl -u me:{VALUE} ", "-----BEGIN PRIVATE KEY-----\nMII\n", f"key={VALUE} "])
def test_four_times_the_secrets_take_at_most_eight_times_as_long(part: str) -> None:
    def quickest(signs: int) -> float:
        text, taken = part * (signs // len(part)), []
        for _ in range(5):
            began = time.process_time()
            assert VALUE not in redact.masked(text)
            taken.append(time.process_time() - began)
        return min(taken)

    assert quickest(80_000) <= 8 * quickest(20_000)
