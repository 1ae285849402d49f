"""An error's text is shown as it is, whatever it looks like."""

from __future__ import annotations

import pytest

from sweeps.text import screen, tables

SAID = "UnknownError: [/root/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:50395 [bold]reset[/bold]"


def test_words_in_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_rows([{"trial": "b8", "message": SAID}], "table", "[/] found")
    screen.beside().print(SAID, style="red")
    screen.beside().print(screen.named("[/]", SAID))
    told = capsys.readouterr()
    assert SAID in told.out
    assert "[/] found" in told.out
    assert told.err.splitlines() == [SAID, f"[/]: {SAID}"]


def test_a_frame_is_shown_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    pd = pytest.importorskip("pandas")
    tables.show(pd.DataFrame([{"trial": "b8", "message": SAID}]), "table")
    assert SAID in capsys.readouterr().out
