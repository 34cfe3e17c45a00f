"""samekey db: look at a database of your own, whether or not samekey guards it."""

from __future__ import annotations

from importlib import import_module

import click

from samekey.cli.exits import Exit

# Name -> its module and what it does. Loaded when it is called: `audit` on SQLite needs no driver.
COMMANDS = {
    "rates": ("samekey.cli.db.rates:rates", "which rates of the fleet are higher than usual"),
    "load": ("samekey.cli.db.load:load", "import a file so that a second run changes nothing"),
    "export-job": ("samekey.cli.db.exporting:export", "write the rules as a program for Spark or Flink"),
    "watch": ("samekey.cli.db.watch:watch", "report duplicate rows as they are stored"),
    "audit": ("samekey.cli.db.audit:audit", "find the gaps in a schema that admit duplicate rows"),
    "scan": ("samekey.cli.db.scan:scan_command", "find every duplicate row, by a rule file"),
}


class Group(click.Group):
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


@click.group(cls=Group, invoke_without_command=True)  # so that the help is printed with exit code 2
@click.pass_context
def db(ctx: click.Context) -> None:
    """Look at a database of your own, whether or not samekey guards it."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(Exit.USAGE)
