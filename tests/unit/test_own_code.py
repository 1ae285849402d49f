"""A network and data of the user's own in a sweep file: what is told of them before a rank runs them, and which files
travel to a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.cluster import upload
from sweeps.errors import InputError
from sweeps.record import rows
from sweeps.run import driver, preflight
from sweeps.run.terms import Terms
from sweeps.scheduling.changes import Sameness
from sweeps.spec import own_code, plan, sweep_file
from tests.unit import records
from workers.contract import functions, messages
from workers.contract.messages import Granted, TrialOutcome

FILE: dict[str, Any] = {
    "name": "mine",
    "model": "nets:wide",
    "device": "cpu",
    "space": {"batch_size": 8, "gpus": [1, 2], "width": [1, 2]},
}
NETS = """
import blocks
from . import nowhere

def wide(image_size, classes, width=1, *, depth=2): ...
def strict(classes, layers): ...
def any_axis(**more): ...
def unnamed(classes, /, width): ...
made = wide
class Net: ...
"""
DATA = "def words(rank, size, batch_size, split): ...\ndef endless(rank): ...\n"


@pytest.fixture
def folder(workplace: Path) -> Path:
    files = {"nets.py": NETS, "blocks.py": "import os, parts.one", "parts/__init__.py": "", "parts/one.py": ""}
    files |= {"parts/two.py": "", "data.py": DATA, "broken.py": "def f(:\n", "train.py": ""}
    for name, text in files.items():
        path = workplace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return workplace


def planned(**changed: Any) -> plan.Plan:
    return plan.plan(sweep_file.parse(yaml.safe_dump({**FILE, **changed}), "mine.yaml"))


def told(**changed: Any) -> list[str]:
    """The mistakes that are found in the files, as they are said."""
    return [*map(str, own_code.mistakes(planned(**changed).trials, Path.cwd(), is_whole=True))]


def test_a_network_of_one_s_own_has_axes_of_its_own() -> None:
    made = planned()
    assert {(one.model, one.own["width"]) for one in made.trials} == {("nets:wide", 1), ("nets:wide", 2)}
    assert made.trials[0].image_size == 224
    assert messages.trial_config(messages.to_json(made.trials[0])) == made.trials[0]
    assert rows.params(made.trials[0])["own.width"] in (1, 2)


def test_a_network_of_ours_is_one_cell_whatever_the_axes_of_another_are() -> None:
    cells = planned(model=["tiny", "nets:wide"], space={**FILE["space"], "gpus": 1}).cells.values()
    assert sorted((one.model, one.own.get("width", 0)) for one in cells) == [
        ("nets:wide", 1),
        ("nets:wide", 2),
        ("tiny", 0),
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "nets.wide"}, "model: must be one of alexnet"),
        ({"model": "tiny"}, "space.width: must be a known key"),
        ({"data": "data:words", "space": {**FILE["space"], "rank": [1]}}, "space.rank: is told to your code as it is"),
        ({"data": "data:words", "space": {**FILE["space"], "decode_threads": [1, 2]}}, "no JPEG is decoded"),
    ],
)
def test_what_the_sweep_file_alone_tells_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        planned(**changed)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "nets:wid"}, "must name a function of {folder}/nets.py (did you mean wide?), but got nets:wid"),
        ({"model": "net:wide"}, "model: must be MODULE:FUNCTION of a module in {folder}, or of one that is installed"),
        ({"model": "parts.three:f"}, "model: must be MODULE:FUNCTION of a module in {folder}, but got parts.three:f"),
        ({"model": "broken:f"}, "must be in a module that Python can read, but got broken.py, line 1:"),
        ({"model": "nets:strict"}, "(add it under space:), but got layers of nets:strict"),
        (
            {"space": {**FILE["space"], "dept": [1]}},
            "a parameter of a function (did you mean depth?), but got nets:wide",
        ),
        ({"model": "nets:unnamed"}, "must be given by name (no `/` behind them), but got classes of nets:unnamed"),
        (
            {"data": "data:endless", "protocol": "convergence", "epochs": 1},
            "must ask for split, which is train or validation, but got data:endless(rank)",
        ),
    ],
)
def test_a_mistake_in_a_file_that_is_here_is_named_at_once(folder: Path, changed: dict[str, Any], said: str) -> None:
    (mistake,) = told(**changed)
    assert said.format(folder=folder) in mistake


@pytest.mark.parametrize("model", ["nets:wide", "nets:any_axis", "nets:made", "nets:Net", "json:loads"])
def test_what_fits_or_can_t_be_told_is_left_to_the_ranks(folder: Path, model: str) -> None:
    assert told(model=model, data="data:words") == []


def test_run_and_plan_look_before_anything_starts(folder: Path) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump({**FILE, "model": "nets:wid"}))
    with pytest.raises(InputError, match="did you mean wide"):
        driver.drive(Path("mine.yaml"), (), Terms())
    with pytest.raises(InputError, match="nothing is known of a program before it has run"):
        preflight.check(planned().spec, "mine.yaml", Terms(simulate="nodes=1,gpus=2,gpu=v100"))


def test_parameters_are_the_same_read_and_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(one, /, two, three=3, *, four, five=5, **more): ...  # type: ignore[no-untyped-def]

    source = "def some(one, /, two, three=3, *, four, five=5, **more): ...\n"
    Path("shapes.py").write_text(source)
    assert functions.read("shapes:some", folder) == functions.parameters(some)


def test_modules_travel_with_what_they_import_and_nothing_else(folder: Path) -> None:
    found = own_code.files(planned(data="data:words").spec, folder)
    assert [*map(str, found.taken)] == ["blocks.py", "data.py", "nets.py", "parts/__init__.py", "parts/one.py"]
    assert found.words() == [
        f"5 files of your code, {found.words()[0].split()[5]} MiB: blocks.py, data.py, nets.py, parts/__init__.py,"
        " parts/one.py"
    ]
    assert found.words(1)[0].endswith("MiB: blocks.py, and 4 more, which sweep plan names")


def script(run: str) -> plan.Plan:
    return plan.plan(sweep_file.parse(f"{{name: x, run: {run}, device: cpu, space: {{gpus: 1}}, items: 1}}", "x"))


def test_a_script_travels_with_its_folder_and_secrets_stay(folder: Path) -> None:
    for name in ("jobs/train.py", "jobs/words.txt", "jobs/.env", "jobs/deploy.key", "jobs/api_token.txt", "jobs/.git/x",
                 "jobs/__pycache__/x.pyc", "jobs/results/x", "jobs/env/pyvenv.cfg", "jobs/env/lib.py"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "jobs/link.py").symlink_to("/etc/hostname")
    found = own_code.files(script("python jobs/train.py").spec, folder)
    assert [*map(str, found.taken)] == ["jobs/train.py", "jobs/words.txt"]
    assert found.words()[1] == "left out, since they look like secrets: jobs/.env, jobs/api_token.txt, jobs/deploy.key"
    packed = upload.pack(folder.parent / f"{folder.name}-pack", Path("x.yaml"), "name: x", found)
    assert {"jobs/train.py", "jobs/words.txt", "x.yaml"} <= {*map(str, packed)}
    assert not [path for path in packed if "token" in path.name or path.suffix in (".key", ".env")]


def test_a_key_in_a_file_stays_whatever_its_name_and_a_module_with_one_is_refused(folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs/train.py").write_text("x")
    (folder / "jobs/config.yaml").write_text(f"hub: hf_{'a1B2' * 8}\n")
    (folder / "jobs/service.json").write_text("-----BEGIN PRIVATE KEY-----\nMIIE")
    found = own_code.files(script("python jobs/train.py").spec, folder)
    assert [*map(str, found.taken)] == ["jobs/train.py"]
    assert [*map(str, found.secrets)] == ["jobs/config.yaml", "jobs/service.json"]
    (folder / "data.py").write_text(f"KEY = 'hf_{'a1B2' * 8}'\n{DATA}")
    with pytest.raises(InputError, match=r"must hold no key: have env_from name one, but got data\.py"):
        own_code.files(planned(data="data:words").spec, folder)


DATA_FILES = {  # beside a script, and none by its name
    "config.json": '{"lr": 1, "wandb_api_key": "swordfish"}',
    "store.json": '{"store": "postgresql://me:swordfish@db"}',
    "config.yaml": "lr: 1\ndb:\n  password: swordfish\n",
    "block.yml": "{db: {password: swordfish}}\n---\ndb: !vault\n  password: |\n    sword\n    fish\n",
    "broken.yaml": "a: {{ b }\npassword: 'swordfish'\n",
    "settings.ini": "[db]\nPASSWORD=swordfish\n",
    "more.cfg": "[db]\npassword : swordfish\n",
    "gcp.json": '{"installed": {"client_id": "1", "client_secret": "swordfish"}}',
    "kaggle.json": '{"username": "me", "key": "0f1e2d3c4b5a69788796a5b4c3d2e1f0"}',
    "run.ipynb": '{"cells": ["' + "iVBORw0KGgo=" * 100_000 + f'", "hf_{"a1B2" * 8}"]}}',
    "list.json": '{"passwords": ["swordfish", "hunter2abc"]}',
    "keys.json": '{"api_keys": ["k3Jd82hGs9"], "hub_token": null}',
    "tokens.json": '{"tokens": ["aZ81kLm20xQ9"]}',
    "nested.json": '{"secrets": {"db": "swordfish1"}}',
    "who.json": '{"credentials": [{"user": "me", "value": "swordfish1"}]}',
    "nested.yaml": "secrets:\n  db: swordfish1\n",
    "nested.toml": "[secrets]\ndb = 'swordfish1'\n",
    "part.json": '{"a": "' + "x y " * 300_000 + '", "password": "swordfish"}',
    "large.bin": "x" * ((1 << 20) - 9) + f" hf_{'a1B2' * 8} " + "x" * 99,
}
NO_SECRETS = {
    "vocab.json": '{"password": 9723, "token": 1904, "secret": 3, "the": 1.5, "PW": [["a", 1]], "keys": {}}',
    "words.json": '[{"token": "The", "pos": "DT"}, {"pad_token": "<pad>", "image_token": "<image>"}]',
    "model.yaml": "lr: 1\nkey: image\npad_token: '<pad>'\ntoken: word\nmax_tokens: 128\npassword:\nauth: basic\n",
    "names.txt": "password\nsecret\ntoken key\nthe passes: three\n",
    "tool.toml": "[a]\nkey = 'column'\nsecret = '{SECRET}'\npassword = \"${PASSWORD}\"\n",
    "refs.yaml": "ssh_private_key: ~/.ssh/id_1\n~/auth_token: ~/x\npassword: ${PASSWORD}\ntoken: {{ token }}\n",
    "ldm.yaml": "first_stage_key: image\ncond_stage_key: caption\nimage_key: jpg\n",
    "monai.yaml": "keys: [image, label]\nhub_token: null\napi_key:\npassword: ~\n",
    "args.json": '{"push_to_hub_token": null, "api_key": null, "image_token": null, "password": "${oc.env:X}"}',
    "tokenizer_config.json": '{"word_delimiter_token": "|", "prefix_token": "\\u2581<PRE>", "secret": "<your secret>"}',
    "requirements.txt": "tiktoken==0.7.0\nsecretstorage>=3.3\n",
    "package.json": '{"dependencies": {"cookie": "^0.6.0", "jsonwebtoken": "^9.0.2", "keytar": "7.9.0"}}',
    "shape.json": '{"properties": {"password": {"type": "string", "description": "of the user"}}}',
    "a.ipynb": '{"cells": [{"source": ["next_token = logits.argmax(-1)\\n", "key = jax.random.PRNGKey(0)"]}]}',
    "other.py": "password = 'swordfish'\n",
    "large.json": '{"a": "' + "iVBORw0KGgo= " * 100_000 + '"}',
}


@pytest.mark.parametrize("name", [*DATA_FILES, *NO_SECRETS])
def test_a_data_file_with_a_secret_stays_and_is_named(name: str, folder: Path) -> None:
    """Of Python sources only a key of a known form is told: `password = ask()` is no secret."""
    (folder / "jobs").mkdir()
    (folder / "jobs/train.py").write_text("x")
    (folder / "jobs" / name).write_text({**DATA_FILES, **NO_SECRETS}[name])
    found = own_code.files(script("python jobs/train.py").spec, folder)
    assert (f"jobs/{name}" in map(str, found.taken)) == (name in NO_SECRETS)
    assert [*map(str, found.secrets)] == ([f"jobs/{name}"] if name in DATA_FILES else [])
    assert (f"left out, since they look like secrets: jobs/{name}" in found.words()) == (name in DATA_FILES)


def test_too_much_is_refused_and_the_largest_is_named(folder: Path) -> None:
    with (folder / "parts/images.bin").open("wb") as file:
        file.truncate((own_code.MOST_MIB + 1) << 20)
    (folder / "parts/train.py").write_text("")
    with pytest.raises(InputError, match=r"at most 50 MiB \(keep data elsewhere\); the largest: parts/images.bin \(51"):
        own_code.files(script("python parts/train.py").spec, folder)


def test_what_is_too_much_is_refused_before_it_is_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "holds_secret", lambda path: pytest.fail(f"{path} was read"))
    for name in ("a.bin", "b.json"):
        with (folder / f"parts/{name}").open("wb") as file:
            file.truncate((own_code.MOST_MIB // 2 + 1) << 20)
    (folder / "parts/train.py").write_text("")
    with pytest.raises(InputError, match="at most 50 MiB"):
        own_code.files(script("python parts/train.py").spec, folder)


def test_a_folder_of_code_can_t_have_the_name_of_ours(folder: Path) -> None:
    (folder / "sweeps").mkdir()
    (folder / "sweeps/train.py").write_text("")
    found = own_code.files(script("python sweeps/train.py").spec, folder)
    with pytest.raises(InputError, match="must have another name than sweeps"):
        upload.pack(folder.parent / f"{folder.name}-pack", own=found)


def test_code_that_was_edited_is_told_and_no_result_of_it_is_used_again() -> None:
    config = planned().trials[0]

    def record(software: str, repeat: int) -> Any:
        granted = tuple(Granted(rank=rank, node="a", software=software) for rank in range(config.gpus))
        outcome = TrialOutcome(status="completed", granted=granted)
        return records.record(dataclasses.replace(config, repeat=repeat), outcome=outcome)

    same = Sameness(trials=[record("aaaa", 0)])
    assert same.ended(record("aaaa", 1)) == []
    (line, *_) = same.ended(record("bbbb", 2))
    assert "your own code" in line
    assert driver._reusable([config]) == set()


def test_what_can_t_be_counted_is_no_figure() -> None:
    known = records.record(records.config())
    ranks = known.outcome.measurement.ranks if known.outcome.measurement else ()
    unknown = tuple(dataclasses.replace(rank, flops=0, parameters=0) for rank in ranks)
    outcome = dataclasses.replace(known.outcome, measurement=messages.Measurement(ranks=unknown))
    figures = rows.metrics(dataclasses.replace(known, outcome=outcome))
    assert not {"flops_per_image", "train_tflops", "parameters"} & figures.keys()
    assert {"flops_per_image", "train_tflops", "parameters"} <= rows.metrics(known).keys()
