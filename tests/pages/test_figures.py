"""The table of figures that `make proof` ends with."""

from __future__ import annotations

from tests.figures import count, figure, table


def test_figures_are_sorted_and_counts_of_one_name_are_added_up(capsys):
    figure("b", "last")
    count("a", worlds=1, scenes=1000)
    print("something else")
    count("a", worlds=1, scenes=500)

    assert [" ".join(line.split()) for line in table(capsys.readouterr().out)] == ["a 2 worlds, 1,500 scenes", "b last"]
