"""The word check: it counts prose and names, not code, and its ceilings only go down."""

from __future__ import annotations

import pytest

from tools.words import complaints, found, lowered

PYTHON = '''
"""Whoever reads this is told."""
import functools  # nobody's


@functools.cache
def told(word: str) -> str:
    said = "`nobody` is a name; whoever waits is not"
    return {"told": said, "words": word}["told"]
'''
PAGE = """
Nobody is told. `nobody` is a name, and Cache-Control is a header.

```python
nobody = somebody
```

    samekey ls --whoever

The job.
"""
SQL = "-- nobody holds it\nSELECT job FROM word;\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", PYTHON, ["nobody", "said", "told", "told", "whoever", "whoever", "word"]),
        ("a.md", PAGE, ["job", "nobody", "told"]),
        ("a.sql", SQL, ["nobody"]),
    ],
)
def test_prose_and_defined_names_count_and_code_does_not(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)

    assert sorted(found(tmp_path / name)) == words


def test_a_file_above_its_ceiling_is_named():
    assert complaints({"a.py": 2, "b.py": 1}, {"a.py": 2}, 0) == [
        "b.py: 1 hidden subjects, at most 0 allowed: python -m tools.words b.py"
    ]


def test_a_ceiling_above_its_file_is_named_so_that_it_only_goes_down():
    assert complaints({"a.py": 1}, {"a.py": 2}, 0) == [
        "a.py: 1 hidden subjects, 2 allowed: python -m tools.words --lower"
    ]
    assert lowered({"a.py": 1, "b.py": 5}, {"a.py": 2, "b.py": 3, "gone.py": 4}) == {"a.py": 1, "b.py": 3}


def test_pronouns_in_the_package_have_one_ceiling():
    assert complaints({}, {}, 60) == []
    assert complaints({}, {}, 61) == ["src: 61 times whoever/somebody/nobody/anybody, at most 60: name the subject"]
