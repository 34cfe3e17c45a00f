"""samekey prove: which of the four assumptions hold at an HTTP endpoint?"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli.exits import Exit
from samekey.prove import ASSUMPTIONS, SCENARIOS, Budget, Probe, Report, Standing, Target, check_ours, examine

SECONDS_MAX = 86_400  # a day: more is a typing error, and no clock overflows

OVERSIZE = click.IntRange(1, 256 << 20)  # the body is made in memory, and the default of --max-bytes is not larger
METHODS = click.Choice(["POST", "PATCH", "PUT", "DELETE"], case_sensitive=False)
SKIPPABLE = click.Choice([name for name in SCENARIOS if name != "two-keys"])
PAGE = click.Path(dir_okay=False, writable=True, path_type=Path)

Pairs = tuple[tuple[str, str], ...]


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # what a header can carry


def _header(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Pairs:
    pairs = []
    for value in values:
        name, colon, text = value.partition(":")
        if not (colon and _NAME.fullmatch(name.strip())) or not _VALUE.fullmatch(text):
            raise click.BadParameter(f"{value!r} is not a header: write 'Name: value'.")
        pairs.append((name.strip(), text.strip()))
    return tuple(pairs)


def _body(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    if value is None or not value.startswith("@"):
        return None if value is None else value.encode()
    try:
        return Path(value[1:]).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{value[1:]}: {error.strerror}.") from None


def _page(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the examination: its effects are real, and would be in vain."""
    if value is not None and not os.access(value if value.exists() else value.parent, os.W_OK):
        raise click.BadParameter(f"{value} cannot be written.")
    return value


class Seconds(click.FloatRange):
    """A finite number of seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds) or seconds > SECONDS_MAX:
            self.fail(f"{value} is not a number of seconds up to {SECONDS_MAX}.", param, ctx)
        return seconds


def _path(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(value.split(".")) if value else ()


@click.command()
@click.argument("url")
@click.option("--body", default="{}", callback=_body, metavar="TEXT|@FILE", help="The body of the requests.")
@click.option("--other-body", callback=_body, metavar="TEXT|@FILE", help="Another intent.  [default: made from --body]")
@click.option("--method", default="POST", type=METHODS, help="The method of the requests.")
@click.option("--content-type", default="application/json", help="Content type of the bodies.")
@click.option("-H", "--header", "headers", multiple=True, callback=_header, help="'Name: value', on every request.")
@click.option(
    "--other-header", "other_headers", multiple=True, callback=_header, help="The same, of another principal."
)
@click.option("--key-header", default="Idempotency-Key", help="Which header carries the key.")
@click.option("--quoted", is_flag=True, help='The endpoint wants "k", not k.')
@click.option("--count-url", metavar="URL", help="GET it to count the effects (a number, or a list).")
@click.option("--count-cmd", metavar="COMMAND", help="Run it to count the effects.")
@click.option("--count-field", callback=_path, metavar="A.B", help="Where in the JSON the number is.")
@click.option("--identity", callback=_path, metavar="A.B", help="Without a probe: the field that names the effect.")
@click.option("--fail-header", "fail_headers", multiple=True, callback=_header, help="Makes requests fail; repeatable.")
@click.option(
    "--break-cmd", multiple=True, metavar="COMMAND", help="Breaks the endpoint, until --heal-cmd; repeatable."
)
@click.option("--heal-cmd", metavar="COMMAND", help="Undoes --break-cmd.")
@click.option("--failures-kept", is_flag=True, help="It documents that failures are replayed (the draft, Stripe v1).")
@click.option("--stream-url", metavar="URL", help="The same operation, answered in a stream.")
@click.option("--other-url", metavar="URL", help="Another operation of the same application.")
@click.option(
    "--skip", multiple=True, type=SKIPPABLE, metavar="SCENARIO", help="A scenario that does not apply here; repeatable."
)
@click.option("--parallel", "callers", default=8, type=click.IntRange(2, 64), help="Requests at once.")
@click.option("--rounds", default=3, type=click.IntRange(1, 100), help="How often.")
@click.option("--oversize", "oversize_bytes", default=8 << 20, type=OVERSIZE, help="Bytes of a large body.")
@click.option("--timeout", default=10.0, type=Seconds(0.1), help="Seconds per request.")
@click.option(
    "--patience",
    "patience_seconds",
    default=5.0,
    type=Seconds(0),
    help="Seconds to repeat a request while the answer is 'later'.",
)
@click.option(
    "--settle",
    "settle_seconds",
    default=0.3,
    type=Seconds(0),
    help="Seconds before effects are counted whose answer no client waited for.",
)
@click.option("--max-requests", default=400, type=click.IntRange(1), help="In all.")
@click.option("--max-seconds", default=180.0, type=Seconds(1), help="In all.")
@click.option("--max-bytes", default=256 << 20, type=click.IntRange(1), help="Sent in all.")
@click.option("--html", "html_file", metavar="FILE", callback=_page, type=PAGE, help="Also write a page.")
@click.option("--yes-this-is-mine", is_flag=True, help="Examine an address of another machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prove(url: str, html_file: Path | None, yes_this_is_mine: bool, as_json: bool, **given: Any) -> Exit:
    """Examine an HTTP endpoint from outside: which of the four assumptions about its keys hold?

    It sends one key twice, many times at once, with another body, from another principal, after a client gave up,
    after a failure, and so on. It makes real effects, so it refuses addresses of other machines. Give it a way to
    count effects; without one it compares the answers, and what they cannot show is "unknown", never "holds".

    \b
    Scenarios (--skip):
      in-sequence in-parallel another-body reordered-fields volatile-headers quoted-and-bare
      similar-keys another-path another-query another-method another-principal no-key
      malformed-keys doubled-keys unfinished-body oversized-body replayed-cookie
      streamed-answer after-a-timeout after-a-failure

    \b
    Example:
      samekey prove http://localhost:8000/charges --body '{"amount": 200}' \\
        -H 'Authorization: Bearer alice' --other-header 'Authorization: Bearer bob' \\
        --count-url http://localhost:8000/charges/count --fail-header 'X-Fail: card'

    \b
    Exit codes: 0 all hold, 1 something is broken, 2 usage, 3 cannot connect, 4 not everything could be tried.
    """
    probe = Probe(url=given.pop("count_url"), command=given.pop("count_cmd"), field=given.pop("count_field"))
    budget = Budget(given.pop("max_requests"), given.pop("max_seconds"), given.pop("max_bytes"))
    timeout, break_commands, heal_command = given.pop("timeout"), given.pop("break_cmd"), given.pop("heal_cmd")
    # The other options have the names of the fields.
    target = Target(url=url, breaks=len(break_commands), **{**given, "skip": frozenset(given["skip"])})
    _check(target, probe, heal_command)
    check_ours(url, probe.url, target.stream_url, target.other_url, said=yes_this_is_mine)
    report = examine(
        target,
        probe=probe,
        budget=budget,
        timeout_seconds=timeout,
        break_commands=break_commands,
        heal_command=heal_command,
        on_scenario=(lambda name: out.note(f"trying {name}")) if out.is_terminal() else (lambda name: None),
    )
    if as_json:
        out.data(report.to_dict())
    else:
        _print(report)
    if html_file is not None:
        html_file.write_text(report.to_html(), encoding="utf-8")
    if report.broken:
        return Exit.FOUND
    return Exit.FINE if report.complete else Exit.INCOMPLETE


def _check(target: Target, probe: Probe, heal_command: str | None) -> None:
    """Refuse options that contradict each other."""
    key_header = target.key_header
    if not _NAME.fullmatch(key_header):
        raise click.UsageError(f"{key_header!r} is not the name of a header.")
    if not _VALUE.fullmatch(target.content_type):
        raise click.UsageError(f"{target.content_type!r} is not a content type.")
    everywhere = (*target.headers, *target.other_headers, *target.fail_headers)
    if any(name.lower() == key_header.lower() for name, _ in everywhere):
        raise click.UsageError(f"{key_header} is sent by this command itself: another one would be a second key.")
    if probe.url and probe.command:
        raise click.UsageError("give one of --count-url and --count-cmd, not both.")
    if target.identity and probe:
        raise click.UsageError("--identity is for counting without --count-url and --count-cmd.")
    if probe.field and not probe:
        raise click.UsageError("--count-field goes with --count-url or --count-cmd.")
    if bool(target.breaks) != bool(heal_command):
        raise click.UsageError("--break-cmd and --heal-cmd go together.")


def _print(report: Report) -> None:
    """Print the table, the steps of every broken finding, and the standing of each assumption."""
    rows = [
        (finding.assumption, finding.standing.value, finding.scenario, finding.evidence)
        for name in ASSUMPTIONS
        for finding in report.findings
        if finding.assumption == name
    ]
    out.table(("assumption", "standing", "scenario", "evidence"), rows)
    for finding in report.findings:
        if finding.standing is Standing.BROKEN:
            out.line()
            out.line(f"{finding.scenario}, {finding.assumption}:")
            for number, step in enumerate(finding.story, 1):
                out.line(f"  {number}. {step}")
    notes = dict.fromkeys(f"{finding.scenario}: {note}" for finding in report.findings for note in finding.notes)
    for note in notes:
        out.note(f"note: {note}")
    out.line()
    for name, says in ASSUMPTIONS.items():
        out.line(f"{name:<9} {report.standing(name):<8} {says}")
    out.line(f"{report.requests} requests; effects counted by {report.counted_by}")
    out.line(report.verdict)
