"""The root command: loads the command that is called, and turns every error into an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NoReturn, TextIO

import click

from samekey import __version__
from samekey.cli import _out as out
from samekey.cli.exits import Exit, exit_of
from samekey.core.errors import SamekeyError

# Name -> its module and what it does. Loaded when it is called: `samekey --help` needs none of them.
COMMANDS = {
    "ls": ("samekey.cli.records:ls", "list records, newest first"),
    "show": ("samekey.cli.records:show", "everything a record holds"),
    "explain": ("samekey.cli.records:explain", "the story of a key: what happened, who must act, what to do"),
    "resolve": ("samekey.cli.resolve:resolve", "write how a doubt ended, with name and reason"),
    "ask": ("samekey.cli.ask:ask_command", "ask the provider about a doubt, with your code's lookup"),
    "worker": ("samekey.cli.worker:worker", "look at dead holds and doubts, and end what can be ended"),
    "reconcile": ("samekey.cli.reconcile:reconcile", "compare records with a provider's statement"),
    "free": ("samekey.cli.removing:free", "remove a settled record: its key may run again"),
    "redact": ("samekey.cli.removing:redact", "drop the result of a settled record; the record stays"),
    "redeliver": ("samekey.cli.redeliver:redeliver", "publish parked messages again"),
    "stats": ("samekey.cli.overview:stats", "attempts by operation, source and outcome; records by state"),
    "audit": ("samekey.cli.overview:audit", "what people did, with name and reason"),
    "doubles": ("samekey.cli.overview:doubles", "one content under several keys"),
    "adopt": ("samekey.cli.adopt:adopt", "take over the keys of another table or file"),
    "doctor": ("samekey.cli.doctor:doctor", "is the store sound, and does a record need a person?"),
    "sweep": ("samekey.cli.sweep:sweep", "delete records past their retention, at a measured pace"),
    "migrate": ("samekey.cli.migrate:migrate", "make the tables of a store, or bring them up to date"),
    "completion": ("samekey.cli.completion:completion", "the completion script of bash, zsh or fish"),
    "prove": ("samekey.cli.prove:prove", "which of the four assumptions hold at your HTTP endpoint?"),
    "db": ("samekey.cli.db:db", "find the gaps in a schema that admit duplicate rows"),
    "intake": ("samekey.cli.intake:intake", "absorb bursts of triggers: one key, one run id"),
    "console": ("samekey.cli.console:console", "a web page to see and operate it all"),
    "demo": ("samekey.cli.demo:demo", "see a double charge happen, and not happen"),
}

# Errors of the place where the output is written: not a bug of samekey.
NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Root(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (_, does) in COMMANDS.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Like click's own, with samekey's exit codes, and without a traceback unless --debug is given."""
        session = SimpleNamespace(debug=False)  # `--debug` sets it; the error handling reads it
        kwargs = {"obj": session, **kwargs}
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **kwargs)
        out.open_closed_streams()
        out.never_fail_on_odd_characters()
        try:
            code = run(*args, standalone_mode=False, **kwargs)
            sys.stdout.flush()
        except click.ClickException as error:
            with suppress(OSError):
                error.show()
            code = Exit.USAGE
        except click.Abort:  # Ctrl-C, or "no" to a question
            out.note("stopped; nothing more was done")
            code = Exit.INCOMPLETE
        except BrokenPipeError:
            code = _hung_up()
        except SamekeyError as error:
            code = exit_of(error)
            _complain(error.message, getattr(error, "hint", ""), debug=session.debug)
        except Exception as error:
            code = _unexpected(error, debug=session.debug)
        _leave(int(code or 0))

    # Catch a closed pipe before click does: its exit code for that is 1, which here means "found something".

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            raise click.exceptions.Exit(_hung_up()) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return _hung_up()


def _complain(message: str, hint: str, *, debug: bool) -> None:
    out.note(f"samekey: {message}")
    if hint:
        out.note(f"  {hint}")
    if debug:
        with suppress(OSError):
            click.echo(traceback.format_exc(), err=True, nl=False)


def _unexpected(error: Exception, *, debug: bool) -> Exit:
    if isinstance(error, OSError) and error.errno in NOT_WRITTEN:
        _complain(f"the output could not be written: {error.strerror}", "", debug=debug)
        return Exit.INCOMPLETE
    # Only its type: the text of an exception may quote a result, which the user did not reveal.
    _complain(f"{type(error).__name__}: this is a bug of samekey, please report it", "", debug=debug)
    if not debug:
        out.note("samekey --debug ... shows where it happened")
    return Exit.OUR_BUG


def _hung_up() -> Exit:
    """The reader of the output has closed the pipe (`| head`): print nothing."""
    _drop(sys.stdout)
    return Exit.INCOMPLETE


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _drop(stream)
    sys.exit(code)


def _drop(stream: TextIO) -> None:
    """Send the rest of the output to /dev/null: otherwise Python flushes it at exit and sets its own exit code."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError, AttributeError):
        pass  # the stream is no real file: then there is nothing to flush


@click.group(
    cls=Root,
    invoke_without_command=True,  # so that the help is printed with exit code 2
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, message="samekey %(version)s", help="Print the version.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def root(ctx: click.Context, debug: bool) -> None:
    """Same key, same answer. Always.

    Reads the records of a store and shows what became of a key.

    \b
    Example:
      export SAMEKEY_STORE=sqlite:///keys.db
      samekey ls --state in_doubt
      samekey explain charge order-17

    \b
    Exit codes of every command:
      0  fine, and nothing found            4  incomplete
      1  ran well, and found something      5  refused: the record changed
      2  usage                              6  no such key
      3  cannot connect or not permitted    70 a bug of samekey
    """
    ctx.obj.debug = ctx.obj.debug or debug
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(Exit.USAGE)
