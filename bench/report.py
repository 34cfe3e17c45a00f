"""Results as a table for people, or as one JSON object per line for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from bench.figures import Figure, Result

_WORDS = {True: "yes", False: "NO", None: "-"}


class Table:
    """Rows are printed as they come: columns are as wide as what was announced."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        announced = list(figures)
        self._id = max((len(figure.id) for figure in announced), default=2)
        self._unit = max((len(figure.unit) for figure in announced), default=4)

    def head(self) -> str:
        return self._line("id", "value", "unit", "target", "ok", "in margin", "against")

    def announced(self, figure: Figure) -> str:
        return f"{figure.id:{self._id}}  {figure.unit:{self._unit}}  {_target(figure):>10}  {figure.against}"

    def row(self, result: Result) -> str:
        figure = result.figure
        note = result.error or (result.reading.note if result.reading else "")
        line = self._line(
            figure.id,
            "failed" if result.reading is None else short(result.reading.value),
            figure.unit,
            _target(figure),
            _WORDS[result.ok],
            _WORDS[result.within_margin],
            figure.against,
        )
        return f"{line}\n{'':{self._id}}  {note}" if note else line

    def _line(self, id: str, value: str, unit: str, target: str, ok: str, margin: str, against: str) -> str:
        return (
            f"{id:{self._id}}  {value:>9}  {unit:{self._unit}}  {target:>10}  {ok:>3}  {margin:>9}  {against}".rstrip()
        )


def _target(figure: Figure) -> str:
    if figure.target is None:
        return "-"
    return str(figure.target) if figure.target.gates else f"({figure.target})"  # judged, but no reason to fail


def json_line(result: Result) -> str:
    figure, reading = result.figure, result.reading
    return json.dumps(
        {
            "id": figure.id,
            "value": None if reading is None else round(reading.value, 4),
            "unit": figure.unit,
            "target": None if figure.target is None else str(figure.target),
            "ok": result.ok,
            "within_margin": result.within_margin,
            "against": figure.against,
            "group": result.group,
            "note": result.error or ("" if reading is None else reading.note),
            "samples": [] if reading is None else [round(sample, 4) for sample in reading.samples],
        }
    )


def summary(results: Sequence[Result]) -> str:
    gated = [result for result in results if result.figure.target is not None and result.figure.target.gates]
    missed = [result for result in gated if not result.ok]
    close = [result for result in missed if result.within_margin]
    failed = len({result.error for result in results if result.reading is None})
    said = f"{len(gated) - len(missed)} of {len(gated)} targets met"
    if close:
        said += f"; {len(close)} of the {len(missed)} missed lie within the 25 % margin"
    if failed:
        said += f"; {failed} experiments failed"
    return said


def short(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"
