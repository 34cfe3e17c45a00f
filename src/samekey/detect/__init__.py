"""Find the gap in a schema that admits duplicate rows, count the rows that came through it, and print the fix.

Reading order: `canonical` (text without invisible differences), `rule_file` (what counts as a duplicate row),
`catalog` (the model), `catalog_*` (one reader per server), `findings`, `names`, `dialect`, `rules/`
(pure functions from the model to findings), `confirm` (count in the rows), `audit` (all of it),
`baseline` (what a person accepted), `report`.
"""
