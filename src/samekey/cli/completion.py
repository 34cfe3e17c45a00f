"""samekey completion: the lines that make a shell complete samekey's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from samekey.cli import _out as out
from samekey.cli.exits import Exit

INSTALLED = {
    "bash": "samekey completion bash > ~/.local/share/bash-completion/completions/samekey",
    "zsh": "samekey completion zsh > ~/.zfunc/_samekey   (a folder of your fpath)",
    "fish": "samekey completion fish > ~/.config/fish/completions/samekey.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALLED)))
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for programs.")
@click.pass_context
def completion(ctx: click.Context, /, shell: str, as_json: bool) -> Exit:
    """Print the completion script of a shell: bash, zsh or fish.

    \b
    Example:
      samekey completion bash > ~/.local/share/bash-completion/completions/samekey
    """
    made = get_completion_class(shell)
    if made is None:  # this version of click has no such shell
        raise click.UsageError(f"there is no completion for {shell} here.")
    script = made(ctx.find_root().command, {}, "samekey", "_SAMEKEY_COMPLETE").source()
    if as_json:
        out.data({"shell": shell, "script": script})
    else:
        click.echo(script)
    if out.is_terminal():
        out.note(f"to install: {INSTALLED[shell]}")
    return Exit.FINE
