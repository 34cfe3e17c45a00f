"""`samekey db export-job`: the rules as a program for a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from samekey.cli import _out as out
from samekey.cli.exits import Exit
from samekey.detect.exporting import write_flink, write_spark
from samekey.detect.rule_file import load

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("export-job")
@click.option("--rule", "rules", type=FILE, required=True, metavar="FILE", help="The rule file.")
@click.option("--engine", type=click.Choice(["spark", "flink"]), required=True)
@click.option("--out", "folder", type=FOLDER, required=True, metavar="DIR", help="Where the files are written.")
def export(rules: Path, engine: str, folder: Path) -> Exit:
    """Write the rules as a program for a cluster, over Debezium's change events.

    spark: a PySpark program with samekey's own detector; it gives the alerts of `samekey db watch`, ids included.
    flink: a Flink SQL recipe with the same window; Flink's operators do the work.
    """
    write = write_spark if engine == "spark" else write_flink
    for path in write(load(rules), folder):
        out.line(str(path))
    return Exit.FINE
