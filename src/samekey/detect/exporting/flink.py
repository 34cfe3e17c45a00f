"""A Flink SQL recipe for the same rules. It compares each row with the row before it of its key, as `scan` does.

It is a recipe and not the detector: Flink's own operators keep the state, rows that are later than the watermark are
dropped, and canonical text is only trimmed and lowered.
"""

from __future__ import annotations

from samekey.core.errors import Misconfigured
from samekey.detect.rule_file import Rule

LATENESS_SECONDS = 300


def flink_sql(rules: list[Rule]) -> str:
    parts = ["-- Written by `samekey db export-job`. Set the topic and the servers, then run it with sql-client.sh -f."]
    for rule in rules:
        if rule.by_content or rule.window_seconds is None:
            raise Misconfigured(f"rule {rule.name}: a Flink recipe needs key columns and a window")
        parts += [_source(rule), _query(rule)]
    return "\n\n".join(parts) + "\n"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _source(rule: Rule) -> str:
    named = dict.fromkeys((*rule.row_id, *rule.key, *rule.source))
    columns = [f"  {_quoted(name)} STRING" for name in named if name != rule.time]
    columns.append(f"  {_quoted(rule.time)} TIMESTAMP_LTZ(6)")
    columns.append(
        f"  WATERMARK FOR {_quoted(rule.time)} AS {_quoted(rule.time)} - INTERVAL '{LATENESS_SECONDS}' SECOND"
    )
    lines = ",\n".join(columns)
    return f"""CREATE TABLE {_quoted("changes_" + rule.name)} (
{lines}
) WITH (
  'connector' = 'kafka',
  'topic' = {_literal("shop." + rule.table)},
  'properties.bootstrap.servers' = 'kafka:9092',
  'scan.startup.mode' = 'group-offsets',
  'properties.group.id' = {_literal("samekey-" + rule.name)},
  'format' = 'debezium-json'
);"""


def _query(rule: Rule) -> str:
    keys = ", ".join(f"LOWER(TRIM({_quoted(name)}))" if name in rule.canonical else _quoted(name) for name in rule.key)
    row = " || ',' || ".join(_quoted(name) for name in rule.row_id)
    seconds = int(rule.window_seconds or 0)
    return f"""-- State of a key is kept for the window, and no longer.
SET 'table.exec.state.ttl' = '{seconds} s';
SELECT {_literal(rule.name)} AS rule_name, first_row, second_row, first_at, second_at
FROM (
  SELECT {row} AS second_row, {_quoted(rule.time)} AS second_at,
         LAG({row}) OVER w AS first_row, LAG({_quoted(rule.time)}) OVER w AS first_at
  FROM {_quoted("changes_" + rule.name)}
  WINDOW w AS (PARTITION BY {keys} ORDER BY {_quoted(rule.time)})
)
WHERE first_at IS NOT NULL AND TIMESTAMPDIFF(SECOND, first_at, second_at) <= {seconds};"""
