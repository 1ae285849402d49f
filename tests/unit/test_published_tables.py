"""How a table is read: what may stand in it, and what is said of one that can't be a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.cli import main
from sweeps.errors import InputError
from sweeps.spec import sweep_file
from tests.unit.planted_tables import HEAD, OWN, PUBLISHED, table

WRONG = OWN.replace("1000,", "1.000 img/s,").replace(",2,fp32", ",0,fp61").replace("cpu,16", "gpu,x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["must have a header and a row, but got an empty file"]),
        ("model,batch_size,gpus,images_per_s\n", ["must have a row under its header"]),
        (
            "modl,gpus,images_per_s,images_per_s\nx,1,2,3\n",
            [
                "line 1: must be a known column (did you mean model?), but got modl",
                "line 1: a column must be there once, but got images_per_s",
                "line 1: must have a column model, but got none",
                "line 1: must have a column batch_size, but got none",
            ],
        ),
        (
            WRONG,
            [
                "line 2, images_per_s: must be a number above 0, without a unit or separators, but got 1.000 img/s",
                "line 3, precision: must be one of fp32, tf32, fp16, bf16, but got fp61",
                "line 3, gpus: must be at least 1, but got 0",
                "line 4, batch_size: must be a whole number, but got x",
                "line 4, device: must be the same in every row (cpu further up): split the table, but got gpu",
            ],
        ),
        (OWN + "mine,tiny,cpu,8,1,fp32,999,10,5\n", ["line 5: must differ from line 2"]),
        (OWN + "mine,tiny,cpu\n", ["line 5: must have as many cells as the header, 9, but got 3"]),
        (OWN.replace("1000,10,5", "1000,10,1"), ["line 2, repeats: must be 2 or more beside images_per_s_ci"]),
        ("model,batch_size,gpus,nodes,images_per_s\ntiny,8,3,2,9\n", ["line 2, nodes: must divide gpus (3)"]),
        ('model,batch_size,gpus,images_per_s\ntiny,8,1,"9\n', ["must be CSV"]),
        ("model,batch_size,n,unit,speedup\ntiny,8,2,node,1.8\n", ["line 2, unit: must be gpu"]),
    ],
)  # fmt: skip
def test_a_bad_table_says_all_that_is_wrong_with_it(text: str, says: list[str]) -> None:
    with pytest.raises(InputError) as error:
        table(text)
    for words in says:
        assert words in str(error.value)
    assert all(line.startswith("own.csv: ") for line in str(error.value).splitlines())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"{HEAD},env.X\ntiny,8,1,10,1\ntiny,8,1,11,\n",
            "line 3, env.X: must be given, or another axis must tell this row from line 2, which gives it: split the"
            " table, or leave one out, but got nothing",
        ),
        (
            "model,batch_size,n,speedup,env.X\ntiny,8,1,1,\ntiny,8,2,1.9,1\n",
            "line 2, env.X: must be given, or another axis must tell this row from line 3",
        ),
        (f"{HEAD},env.A B\ntiny,8,1,10,1\n", "line 1: the name of a variable must be letters, digits and '_', but got"),
        (f"{HEAD},env.HOROVOD_CYCLE_TIME\ntiny,8,1,10,1\n", "line 2, env.HOROVOD_CYCLE_TIME: is set by the axis"),
        (HEAD.replace(",", ";"), "line 1: must separate its cells by commas: save it as CSV with commas, but got ;"),
        (HEAD.replace(",", "\t") + "\n", "line 1: must separate its cells by commas: save it as CSV with commas, but"),
        (f"{HEAD}\ntiny,{'1' * 5000},1,10\n", "line 2, batch_size: must be a whole number, but got 1111"),
        (f"{HEAD}\ntiny,8,1,1e-400\n", "line 2, images_per_s: must be from 1e-06 to 1e+15, but got 1e-400"),
        (f"{HEAD}\ntiny,8,1,1e300\n", "line 2, images_per_s: must be from 1e-06 to 1e+15, but got 1e300"),
        (f"{HEAD}\ntiny,8,1,1_000\n", "line 2, images_per_s: must be a number above 0, without a unit or separators"),
        (
            f"{HEAD},image_size\ntiny,8,1,10,32\ninception_v3,8,1,11,\n",
            "line 3, image_size: must be at least 75 for inception_v3, but got 32",
        ),
        (
            f"{HEAD},data,classes\ntiny,8,1,10,,5\ntiny,8,1,11,digits,\n",
            "line 3, classes: must be at least 10 for digits, but got 5",
        ),
        (
            f"{HEAD},warmup_steps,ci\ntiny,8,1,10,10,\ntiny,16,1,11,,1%\n",
            "line 3, ci: must be left out beside warmup_steps and measured_steps, which say how many steps there are,",
        ),
        (
            f"{HEAD},decode_threads\ntiny,8,1,10,4\ntiny,16,1,10,8\n",
            "line 3, decode_threads: has no effect where no JPEG is decoded: leave it empty, or give the folder",
        ),
        (
            f"{HEAD},device,env.HOROVOD_TORUS_ALLREDUCE\ntiny,8,1,10,cpu,\ntiny,8,2,11,,1\n",
            "line 3, env.HOROVOD_TORUS_ALLREDUCE: has no effect on device: cpu",
        ),
        (f"{HEAD}\ntiny,8,,10\n", "line 2, gpus: must be given, but got nothing"),
        (
            f"{HEAD},momentum,weight_decay,label_smoothing\n"
            + "".join(f"tiny,{n},1,10,0.{n},0.00{n},0.0{n}\n" for n in range(1, 26)),
            "its columns must have at most 300,000 combinations of their values: split it by one, but got 304,175",
        ),
        (
            f"{HEAD}\n" + "".join(f"{'tiny' if n < 400 else 'vgg16'},{n},1,10\n" for n in range(1, 800)),
            "its rows must be told apart in conditions of 1000 characters each: split it by a column, but got",
        ),
    ],
)  # fmt: skip
def test_what_can_t_be_a_sweep_is_told_of_the_user_s_file_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(text)
    assert main.main(["reproduce", "own.csv"]) == 2
    told = capsys.readouterr().err
    assert f"own.csv: {says}" in told
    assert all(line.startswith("own.csv: ") for line in told.splitlines() if line.strip() and "must" in line)
    assert "reproduce-own" not in told, "nobody has seen the sweep file"
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]


@given(st.text(max_size=200))
def test_no_text_makes_a_table_crash(text: str) -> None:
    try:
        table(text)
    except InputError:
        pass


def test_a_table_that_is_too_large_is_called_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("x" * (2 << 20))
    assert main.main(["reproduce", "own.csv"]) == 2
    assert "own.csv: a table holds at most 1 MB, but got 2.1 MB" in capsys.readouterr().err


def test_the_list_and_the_plan_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main.main(["reproduce", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {one["table"] for one in listed} >= {*PUBLISHED, "c-table-iii"}
    assert all(one["fit here"].startswith("no: ") for one in listed if one["table"] not in PUBLISHED)
    assert (
        main.main(["reproduce", "A table 5", "--system", "C4140-K", "--plan", "--simulate", "nodes=2,gpu=v100-k"]) == 0
    )
    printed = capsys.readouterr()
    assert sweep_file.parse(printed.out, "printed").space.placement.points() == ["2x4"]
    assert "7 cells × 3 repeats = 21 trials" in printed.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a-tabel-5"], "must be a table that sweep reproduce lists, a CSV file, or a sweep in"),
        (["a-tabel-5"], "did you mean a-table-5?"),
        (["c-table-iii"], "must be one that a sweep can answer: accuracy of inference"),
        (["a-table-5", "--system", "C41"], None),
        (["a-table-5", "--system", "P100"], "must begin the name of one system of the table"),
        (["none.csv"], "must be a file that exists"),
        (["a-table-5", "--tolerance", "x"], "must be at least 0% and less than 100%"),
        (["a-table-5", "--repeats", "0", "--plan"], "--repeats: must be at least 1, but got 0"),
        (["a-table-5", "--set", "precision=fp61"], "a-table-5 with --set precision=fp61: precision: must be one of"),
        (["a-table-5", "--set", "precision"], "--set: must be written key=value, but got precision"),
        (["a-table-5", "--set", "gpus=3"], "a-table-5 with --set gpus=3: "),
        (["a-table-5", "--simulate", "nodes=x"], "nodes: must be a whole number"),
        (["a-table-5", "--export", "x.csv"], "must be a sweep that was measured here"),
        (["a-table-5", "--measured", "nothing"], "must hold the sweep named"),
    ],
)
def test_what_is_wrong_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str], arguments: list[str],
                                        says: str | None) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if says is None:
        assert main.main(["reproduce", *arguments, "--plan"]) == 0
        return
    assert main.main(["reproduce", *arguments]) == 2
    assert says in capsys.readouterr().err
