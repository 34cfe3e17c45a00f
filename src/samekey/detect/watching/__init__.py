"""Watch stored rows as they come: changes in, the detector over a window, alerts out, exact after a crash.

Reading order: `plans` (a change to an event), `changes` (what a source gives), `journal` (the files that survive a
crash), `alerts` (an alert as JSON), `watcher` (the loop). Sources: `pgoutput` and `postgres` (logical replication),
`audit_table` (a trigger's table), `debezium` (change events from a file or a topic). Outputs: `outputs`, `metrics`.
"""
