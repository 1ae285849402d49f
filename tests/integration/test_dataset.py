"""`sweep data`: the sets it makes, what it refuses, and the damage it names."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sweeps.cli.main import main
from workers.inputs import dataset

ASKED = {"--images": "40", "--shards": "4", "--size": "64x48", "--classes": "10", "--seed": "7"}
SHARD = "train-00001-of-00004"
VALIDATION = {"images": 20, "shards": 2, "split": "validation"}
VALIDATION_SHARDS = ["validation-00000-of-00002", "validation-00001-of-00002"]


def sweep(*arguments: str) -> int:
    return main(["data", *arguments])


def make(folder: Path, **changed: object) -> int:
    asked = {**ASKED, **{f"--{name}": str(value) for name, value in changed.items()}}
    return sweep("make", str(folder), *(word for pair in asked.items() for word in pair))


def check(folder: Path, classes: int = 10, *further: str) -> int:
    return sweep("check", str(folder), "--classes", str(classes), *further)


def read(path: Path) -> list[Any]:
    tf = dataset.tensorflow()
    return [tf.train.Example.FromString(r) for r in tf.compat.v1.io.tf_record_iterator(str(path))]


def write(path: Path, examples: list[Any]) -> None:
    with dataset.tensorflow().io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "set"
    assert make(folder) == 0
    return folder


@pytest.fixture(scope="module")
def made_both(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training set, and a validation set of the same seed beside it."""
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("made") / "both"))
    assert make(folder, **VALIDATION) == 0
    return folder


@pytest.fixture
def both(made_both: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_both, tmp_path / "both"))


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def problems(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert check(folder) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return [line for line in said.err.splitlines() if not line.startswith("checking shards")]


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


# ---- what is made


def test_a_set_is_its_shards_and_its_manifest_and_nothing_else(made: Path) -> None:
    assert set(contents(made)) == {*dataset.shard_names(4), "dataset.json"}
    assert json.loads((made / "dataset.json").read_text())["images"] == 40


def test_records_follow_the_convention_of_imagenet(made: Path) -> None:
    shards = [read(made / name) for name in dataset.shard_names(4)]
    assert [len(shard) for shard in shards] == [10, 10, 10, 10]
    features = [example.features.feature for shard in shards for example in shard]
    assert Counter(f["image/class/label"].int64_list.value[0] for f in features) == dict.fromkeys(range(1, 11), 4)
    assert len({f["image/filename"].bytes_list.value[0] for f in features}) == 40
    for f in features:
        image = Image.open(io.BytesIO(f["image/encoded"].bytes_list.value[0]))
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (64, 48))
        assert (f["image/height"].int64_list.value[0], f["image/width"].int64_list.value[0]) == (48, 64)
        assert f["image/colorspace"].bytes_list.value[0] == b"RGB"
        assert f["image/format"].bytes_list.value[0] == b"JPEG"


def test_training_reads_a_made_set(made: Path) -> None:
    tf = dataset.tensorflow()
    from workers.inputs import images, shards

    with tf.device("CPU"):
        records = tf.data.TFRecordDataset(shards.files_of(str(made), "train"))
        image, label = next(iter(records.map(lambda record: images.for_validation(record, 32)).batch(40)))
    assert image.shape == (40, 32, 32, 3)
    assert set(label.numpy().tolist()) == set(range(1, 11))


def test_shards_are_nearly_equal_when_they_cannot_be_equal(tmp_path: Path) -> None:
    assert make(tmp_path / "set", images=11, shards=4, size="32x32") == 0
    assert sorted(len(read(tmp_path / "set" / name)) for name in dataset.shard_names(4)) == [2, 3, 3, 3]


def test_the_same_arguments_make_the_same_bytes_and_another_seed_other_images(made: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "again") == make(tmp_path / "other", seed=8) == 0
    assert contents(tmp_path / "again") == contents(made)
    assert not set(contents(tmp_path / "other").values()) & set(contents(made).values())


def test_jpegs_have_the_size_of_photographs() -> None:
    painter = dataset.Painter(500, 375, seed=0)
    sizes = [len(painter.jpeg(n % 25, np.random.default_rng(n))) for n in range(50)]
    assert 60e3 < np.mean(sizes) < 120e3


def test_classes_can_be_told_apart_and_images_of_a_class_differ() -> None:
    painter = dataset.Painter(64, 48, seed=0)
    rng = np.random.default_rng(0)
    images = np.array([[painter.paint(label, rng) for _ in range(30)] for label in range(1, 11)])
    colours = images.mean(axis=(2, 3))
    nearest = np.linalg.norm(colours[:, :, None] - colours.mean(axis=1), axis=-1).argmin(axis=-1)
    assert (nearest == np.arange(10)[:, None]).mean() > 0.6  # by mean colour alone; chance is 0.1
    assert len({image.tobytes() for image in images.reshape(300, -1)}) == 300


def test_the_last_line_says_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path / "set") == 0
    said = capsys.readouterr()
    assert said.out.startswith("40 images in 4 shards, mean ")
    assert said.out.endswith(f" images/s, in {tmp_path / 'set'}\n")
    assert said.err == "making images: 0 of 40\n"


# ---- a set to validate


def test_a_validation_set_lies_beside_the_training_set_which_stays_as_it_is(made: Path, made_both: Path) -> None:
    before, after = contents(made), contents(made_both)
    assert set(after) - set(before) == {*VALIDATION_SHARDS, "dataset-validation.json"}
    assert before.items() <= after.items()


def test_a_validation_set_is_the_same_made_alone_or_beside_another(made_both: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "alone", **VALIDATION) == 0
    assert contents(tmp_path / "alone").items() <= contents(made_both).items()


def test_the_splits_of_one_seed_share_no_image_and_draw_labels_apart(made_both: Path) -> None:
    train = [example.features.feature for name in dataset.shard_names(4) for example in read(made_both / name)]
    validation = [example.features.feature for name in VALIDATION_SHARDS for example in read(made_both / name)]
    assert Counter(f["image/class/label"].int64_list.value[0] for f in validation) == dict.fromkeys(range(1, 11), 2)
    for name in ("image/encoded", "image/filename"):
        assert not {f[name].bytes_list.value[0] for f in train} & {f[name].bytes_list.value[0] for f in validation}
    labels = [[f["image/class/label"].int64_list.value[0] for f in split[:20]] for split in (train, validation)]
    assert labels[0] != labels[1]


def test_a_class_looks_alike_in_both_splits(made_both: Path) -> None:
    def colours(names: list[str]) -> Any:
        images: dict[int, list[Any]] = {label: [] for label in range(1, 11)}
        for example in (example for name in names for example in read(made_both / name)):
            feature = example.features.feature
            pixels = np.asarray(Image.open(io.BytesIO(feature["image/encoded"].bytes_list.value[0])))
            images[feature["image/class/label"].int64_list.value[0]].append(pixels.mean(axis=(0, 1)))
        return np.array([np.mean(images[label], axis=0) for label in range(1, 11)])

    train, validation = colours(dataset.shard_names(4)), colours(VALIDATION_SHARDS)
    nearest = np.linalg.norm(validation[:, None] - train, axis=-1).argmin(axis=-1)
    assert (nearest == np.arange(10)).mean() > 0.6  # by mean colour alone; chance is 0.1


def test_each_split_is_left_alone_once_it_is_there(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in both.iterdir()}
    capsys.readouterr()
    assert make(both) == make(both, **VALIDATION) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{both} already holds these 40 images in 4 shards: nothing to do",
        f"{both} already holds these 20 images in 2 validation shards: nothing to do",
    ]
    assert before == {path: path.stat().st_mtime_ns for path in both.iterdir()}


def test_a_split_is_made_again_without_a_look_at_the_other(made_both: Path, both: Path) -> None:
    (both / VALIDATION_SHARDS[0]).unlink()
    (both / SHARD).write_bytes(b"damaged")
    assert make(both, **VALIDATION) == 0
    assert (both / SHARD).read_bytes() == b"damaged"
    (both / VALIDATION_SHARDS[1]).write_bytes(b"damaged")
    assert make(both) == 0
    assert (both / VALIDATION_SHARDS[1]).read_bytes() == b"damaged"
    assert make(both, **VALIDATION) == 0
    assert contents(both) == contents(made_both)


def test_a_validation_set_of_another_shard_count_is_refused(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(both)
    capsys.readouterr()
    assert make(both, **VALIDATION | {"shards": 4}) == 2
    line = f"must be free for 4 validation shards, but got 2 files of another set, first {VALIDATION_SHARDS[0]}"
    assert line in refused(capsys)
    assert contents(both) == before


def test_validation_files_that_were_not_made_here_are_never_replaced(
    both: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (both / "dataset-validation.json").unlink()
    before = contents(both)
    capsys.readouterr()
    assert make(both, **VALIDATION) == 2
    assert "choose another folder or remove them" in refused(capsys)
    assert contents(both) == before


def test_both_sets_are_summed_up(made_both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert check(made_both) == 0
    train, validation = capsys.readouterr().out.splitlines()
    assert train.startswith("40 images in 4 shards, 10 of 10 classes, mean ")
    assert validation.startswith("20 images in 2 validation shards, 10 of 10 classes, mean ")


def test_what_is_wrong_with_either_set_is_named(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (both / SHARD).write_bytes(b"")
    shutil.copy(both / VALIDATION_SHARDS[1], both / "validation-00001-of-00003")
    (both / VALIDATION_SHARDS[0]).write_bytes(b"")
    (both / VALIDATION_SHARDS[1]).unlink()
    (both / "dataset-validation.unfinished").touch()
    assert problems(both, capsys) == [
        f"{SHARD}: a shard must hold records, but got an empty file",
        "all validation shards must agree on their number, but got 2 and 3",
        f"all 2 validation shards must be there, but got none named {VALIDATION_SHARDS[1]}",
        "all 3 validation shards must be there, but got none named "
        "validation-00000-of-00003, validation-00002-of-00003",
        "a set must be finished, but got dataset-validation.unfinished: make it again",
        f"{VALIDATION_SHARDS[0]}: a shard must hold records, but got an empty file",
    ]


def test_a_validation_set_that_lost_its_shards_is_missed(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in VALIDATION_SHARDS:
        (both / name).unlink()
    assert problems(both, capsys) == [f"a set has files as validation-00000-of-00008, but got none in {both}"]


def test_a_validation_set_alone_is_no_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, **VALIDATION) == 0
    assert problems(tmp_path, capsys) == [f"a set has files as train-00000-of-00008, but got none in {tmp_path}"]


def test_a_validation_set_that_was_stopped_is_unfinished(
    made: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dataset.Painter, "jpeg", stopped)
        assert make(copy, **VALIDATION) == 130
    assert set(contents(copy)) - set(contents(made)) == {"dataset-validation.unfinished"}
    assert "a set must be finished, but got dataset-validation.unfinished: make it again" in problems(copy, capsys)
    assert make(copy, **VALIDATION) == 0
    assert check(copy) == 0


# ---- a folder that is not empty


def test_a_set_that_was_made_before_there_were_splits_is_recognised(copy: Path) -> None:
    said = json.loads((copy / "dataset.json").read_text())
    assert set(said) == {"images", "shards", "width_px", "height_px", "classes", "seed", "version", "file_bytes"}


def test_a_set_that_is_there_is_left_alone_quickly_and_without_tensorflow(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.iterdir()}
    words = [word for pair in ASKED.items() for word in pair]
    code = (
        "import sys; from sweeps.cli.main import main; status = main(['data', *sys.argv[1:]]); "
        "sys.exit(status or 'tensorflow' in sys.modules)"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, "make", str(made), *words], capture_output=True, text=True, timeout=60
    )
    assert time.perf_counter() - began < 2  # 0.2 s when the machine is idle
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{made} already holds these 40 images in 4 shards: nothing to do\n"
    assert before == {path: path.stat().st_mtime_ns for path in made.iterdir()}


def test_a_damaged_set_is_made_again(made: Path, copy: Path) -> None:
    (copy / SHARD).write_bytes((copy / SHARD).read_bytes()[:-1])
    assert make(copy) == 0
    assert contents(copy) == contents(made)


def test_a_set_that_was_stopped_is_unfinished_until_it_is_made_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = iter(range(25))

    def stopped(*_: object) -> bytes:
        if next(drawn, None) is None:
            raise KeyboardInterrupt
        return b"\xff\xd8\xff"

    with monkeypatch.context() as patch:
        patch.setattr(dataset.Painter, "jpeg", stopped)
        assert make(tmp_path) == 130
    assert set(contents(tmp_path)) == {*dataset.shard_names(4)[:2], "dataset.unfinished"}
    assert any("dataset.unfinished" in line for line in problems(tmp_path, capsys))
    assert make(tmp_path) == 0
    assert contents(tmp_path) == contents(made)


def test_a_set_of_another_shard_count_is_refused(made: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert make(copy, shards=5) == 2
    assert "must be free for 5 shards, but got 4 files" in refused(capsys)
    assert contents(copy) == contents(made)


def test_files_that_were_not_made_here_are_never_replaced(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "dataset.json").unlink()
    before = contents(copy)
    capsys.readouterr()
    assert make(copy) == 2
    assert "choose another folder or remove them" in refused(capsys)
    assert contents(copy) == before


# ---- what is refused


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"images": 3}, "every shard needs an image, but got 3 for 4 shards"),
        ({"shards": 0}, "a set has from 1 to 99999 shards, but got 0"),
        ({"size": "64x31"}, "sides are from 32 to 4096 pixels, but got 64x31"),
        ({"classes": 0}, "a set has from 1 to 100000 classes, but got 0"),
        ({"classes": 100_001}, "a set has from 1 to 100000 classes, but got 100001"),
        ({"seed": -1}, "a seed is 0 or more, but got -1"),
    ],
)
def test_what_makes_no_set_is_refused_in_one_line(
    changed: dict[str, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(tmp_path / "set", **changed) == 2
    assert refused(capsys) == line + "\n"
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"images": "many"}, "--images: must be a whole number, but got many"),
        ({"size": "64"}, "--size: must be WxH as in 500x375, but got 64"),
        ({"split": "test"}, "--split: must be train or validation, but got test"),
    ],
)
def test_a_bad_argument_is_refused_as_by_every_command(
    changed: dict[str, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(tmp_path / "set", **changed) == 2
    assert f"sweep data make: {line}\n" in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set").touch()
    assert make(tmp_path / "set") == 2
    assert "must be a folder, but got a file" in refused(capsys)


def test_a_folder_that_cannot_be_written_has_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert make(Path("/proc/set")) == 3
    assert "/proc/set must be writable, but got" in refused(capsys)


# ---- what is wrong with a set


def test_a_sound_set_is_summed_up(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert check(made, classes=12) == 0
    assert capsys.readouterr().out.startswith("40 images in 4 shards, 10 of 12 classes, mean ")


def test_no_folder_and_no_records_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(tmp_path / "none", capsys)[0].startswith("DIR must be a folder, but got nothing")
    assert "but got none" in problems(tmp_path, capsys)[0]


def test_missing_shards_are_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (SHARD, "train-00003-of-00004"):
        (copy / name).unlink()
    line = f"all 4 shards must be there, but got none named {SHARD}, train-00003-of-00004"
    assert problems(copy, capsys) == [line]


def test_shards_of_two_sets_are_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(copy / SHARD, copy / "train-00000-of-00001")
    shutil.copy(copy / SHARD, copy / "train-1-of-4")
    assert problems(copy, capsys) == [
        "a shard's name must be as train-00000-of-00008, but got train-1-of-4",
        "all shards must agree on their number, but got 1 and 4",
    ]


@pytest.mark.parametrize("lost_bytes", [1, 200])
def test_a_cut_record_is_named(lost_bytes: int, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / SHARD).write_bytes((copy / SHARD).read_bytes()[:-lost_bytes])
    (line,) = problems(copy, capsys)
    assert line.startswith(f"{SHARD}, record 9: must be readable, but got truncated record")


def test_a_cut_head_of_a_record_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / SHARD).write_bytes((copy / SHARD).read_bytes() + b"1234567")
    assert problems(copy, capsys) == [f"{SHARD}, record 10: must be whole, but got 7 bytes"]


def test_a_corrupt_record_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((copy / SHARD).read_bytes())
    data[500] ^= 255
    (copy / SHARD).write_bytes(data)
    (line,) = problems(copy, capsys)
    assert line.startswith(f"{SHARD}, record 0: must be readable, but got corrupted record")


def test_an_empty_shard_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / SHARD).write_bytes(b"")
    assert problems(copy, capsys) == [f"{SHARD}: a shard must hold records, but got an empty file"]


def test_every_bad_record_is_named_with_what_is_wrong(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = read(copy / SHARD)
    examples[1].features.feature["image/class/label"].int64_list.value[:] = [11]
    examples[2].features.feature["image/class/label"].int64_list.value[:] = [0]
    del examples[3].features.feature["image/class/label"]
    del examples[4].features.feature["image/encoded"]
    examples[5].features.feature["image/encoded"].bytes_list.value[:] = [b"WEBP"]
    write(copy / SHARD, examples)
    (copy / "train-00003-of-00004").unlink()
    assert problems(copy, capsys) == [
        "all 4 shards must be there, but got none named train-00003-of-00004",
        f"{SHARD}, record 1: image/class/label must be from 1 to 10 (labels_from: 1, classes: 10), but got 11: "
        "set classes to the number of them, 11 or more, or mend the record",
        f"{SHARD}, record 2: image/class/label must be from 1 to 10 (labels_from: 1, classes: 10), but got 0: "
        "if the labels count from 0, set labels_from: 0",
        f"{SHARD}, record 3: must have one image/class/label, but got 0",
        f"{SHARD}, record 4: must have one image/encoded, but got 0",
        f"{SHARD}, record 5: image/encoded must start as a JPEG or PNG or GIF or BMP does, but got b'WEBP'",
    ]


def test_a_set_that_counts_from_0_is_checked_from_0(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in copy.glob("train-*"):
        examples = read(path)
        for example in examples:
            example.features.feature["image/class/label"].int64_list.value[0] -= 1
        write(path, examples)
    (line, *_) = problems(copy, capsys)
    assert line.endswith("but got 0: if the labels count from 0, set labels_from: 0")
    assert check(copy, 10, "--labels-from", "0") == 0
    assert capsys.readouterr().out.startswith("40 images in 4 shards, 10 of 10 classes, mean ")
    assert check(copy, 9, "--labels-from", "0") == 2
    rule = "image/class/label must be from 0 to 8 (labels_from: 0, classes: 9), but got 9"
    assert f"{rule}: if the labels count from 1, set labels_from: 1" in capsys.readouterr().err
    assert check(copy, 10, "--labels-from", "2") == 2
    assert "--labels-from: must be 0 or 1, but got 2" in capsys.readouterr().err


def test_images_that_are_no_jpegs_are_sound_and_counted_apart(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = read(copy / SHARD)
    for example in examples[:3]:
        encoded = example.features.feature["image/encoded"].bytes_list.value
        buffer = io.BytesIO()
        Image.open(io.BytesIO(encoded[0])).save(buffer, "PNG")
        encoded[0] = buffer.getvalue()
    write(copy / SHARD, examples)
    capsys.readouterr()
    assert check(copy) == 0
    assert capsys.readouterr().out.startswith("40 images (3 PNG) in 4 shards, 10 of 10 classes, mean ")


def test_a_record_that_is_no_example_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dataset.tensorflow().io.TFRecordWriter(str(copy / SHARD)) as writer:
        writer.write(b"zzzz")
    (line,) = problems(copy, capsys)
    assert line.startswith(f"{SHARD}, record 0: must be a tf.train.Example, but got ")


def test_a_long_list_of_faults_is_cut_short(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = read(copy / SHARD)
    for example in examples:
        example.features.feature["image/class/label"].int64_list.value[:] = [99]
        del example.features.feature["image/encoded"]
    write(copy / SHARD, examples)
    said = problems(copy, capsys)
    assert len(said) == dataset.FAULTS_SHOWN + 1
    assert said[-1] == f"{SHARD}: and 10 more"
