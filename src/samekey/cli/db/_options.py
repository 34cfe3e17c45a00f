"""Options that several `samekey db` commands have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from samekey.core.errors import Misconfigured
from samekey.detect.rule_file import span_seconds

SPAN_MAX_SECONDS = 86_400.0  # a day: more is a typing error


class Span(click.ParamType[float]):
    """A time such as 90, 90s, 5m or 1h, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", str(value))
        seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
        if not 0 < seconds <= SPAN_MAX_SECONDS:
            self.fail(f"{value!r} is no time up to a day: write 90, 90s, 5m or 1h.", param, ctx)
        return seconds


class LongSpan(click.ParamType[float]):
    """A time such as 90s, 5m, 24h or 30d, in seconds: as a rule file writes it."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return span_seconds(str(value), "this")
        except Misconfigured as error:
            self.fail(f"{value!r}: {error.message}.", param, ctx)


def write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise Misconfigured(f"the report cannot be written to {path}: {error}") from error
