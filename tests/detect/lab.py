"""A schema with one table for each kind of gap, and for each finding how many keys and rows are planted.

The tables `healthy` and `healthy_lines` are the control: no rule names them. `EXPECTED_*` has every finding there is.
"""

from __future__ import annotations

Counts = dict[tuple[str, str], list[tuple[int, int] | None]]

POSTGRES = r"""
CREATE TABLE healthy (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant_id int NOT NULL,
  idempotency_key uuid NOT NULL, amount numeric NOT NULL, created_at timestamptz DEFAULT now(),
  UNIQUE (tenant_id, idempotency_key));
CREATE TABLE healthy_lines (healthy_id bigint REFERENCES healthy, line int, PRIMARY KEY (healthy_id, line));
INSERT INTO healthy (tenant_id, idempotency_key, amount)
  SELECT n % 3, gen_random_uuid(), 5 FROM generate_series(1, 50) n;
INSERT INTO healthy_lines SELECT id, line FROM healthy, generate_series(1, 3) line;

CREATE TABLE bare (a int, b text, c json);
INSERT INTO bare VALUES (1, 'x', '{}'), (1, 'x', '{}'), (1, 'x', '{}'), (1, 'X', '{}'),
  (2, NULL, NULL), (2, NULL, NULL);

CREATE TABLE collided (id INT, amount INT);
INSERT INTO collided VALUES (1, 5), (1, 6), (2, 5);
CREATE TABLE null_pair (tenant_id int NOT NULL, slot int, UNIQUE (tenant_id, slot));
INSERT INTO null_pair VALUES (1, NULL), (1, NULL), (1, NULL), (2, NULL), (1, 1);
CREATE TABLE null_single (slot int UNIQUE, amount int NOT NULL);
INSERT INTO null_single VALUES (NULL, 5), (NULL, 5), (NULL, 6), (1, 5);
CREATE TABLE null_equal (slot int, amount int, UNIQUE NULLS NOT DISTINCT (slot));

CREATE TABLE part (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_ref uuid NOT NULL, state int NOT NULL);
CREATE UNIQUE INDEX part_open ON part (order_ref) WHERE state = 1;
INSERT INTO part (order_ref, state) SELECT '00000000-0000-0000-0000-000000000001', s FROM unnest(ARRAY[1, 2, 2]) s;
CREATE TABLE soft (slot int NOT NULL, deleted_at timestamptz);
CREATE UNIQUE INDEX soft_live ON soft (slot) WHERE deleted_at IS NULL;
INSERT INTO soft VALUES (1, now()), (1, now()), (1, NULL);

CREATE TABLE spelled (name text PRIMARY KEY);
INSERT INTO spelled VALUES ('Order 1'), ('order 1 '), (E'order\u00a01'), (E'\uff4frder\t1'), (E'or\u200bder 1'),
  ('b'), (E'\u00e9s'), (E'\u00e9'), ('bus'), ('bu');

CREATE TABLE unfinished (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, slot int);
INSERT INTO unfinished (slot) VALUES (1), (1), (1), (2);

CREATE TABLE late (slot int, CONSTRAINT late_slot PRIMARY KEY (slot) DEFERRABLE INITIALLY DEFERRED);

CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id int, idempotency_key text, amount int);
INSERT INTO payments (tenant_id, idempotency_key) VALUES (1, 'k'), (1, 'k'), (2, 'k'), (1, NULL), (1, NULL);
CREATE TABLE refunds (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid, email text);
CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, slot int NOT NULL UNIQUE);

CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, page text,
  created_at timestamptz DEFAULT now());
INSERT INTO visits (page, created_at) VALUES ('a', '2026-01-01 10:00'), ('a', '2026-01-01 10:01'),
  ('a', '2026-01-03 10:02'), ('b', '2026-01-01 10:00');

CREATE TABLE diluted (order_ref uuid, created_at timestamptz DEFAULT now(), PRIMARY KEY (order_ref, created_at));
INSERT INTO diluted
  SELECT '00000000-0000-0000-0000-000000000001', now() + n * interval '1 s' FROM generate_series(1, 3) n;

CREATE TABLE daily (event_id uuid, day date, PRIMARY KEY (event_id, day)) PARTITION BY RANGE (day);
CREATE TABLE daily_1 PARTITION OF daily FOR VALUES FROM ('2026-01-01') TO ('2026-01-02');
CREATE TABLE daily_2 PARTITION OF daily FOR VALUES FROM ('2026-01-02') TO ('2026-01-03');
INSERT INTO daily VALUES ('00000000-0000-0000-0000-000000000001', '2026-01-01'),
  ('00000000-0000-0000-0000-000000000001', '2026-01-02');

CREATE TABLE sites (slot int NOT NULL, site text) PARTITION BY LIST (site);
CREATE TABLE sites_eu PARTITION OF sites FOR VALUES IN ('eu');
CREATE TABLE sites_us PARTITION OF sites FOR VALUES IN ('us');
CREATE UNIQUE INDEX sites_eu_slot ON sites_eu (slot);
INSERT INTO sites VALUES (1, 'eu'), (1, 'us'), (1, 'us');

CREATE TABLE parent (slot int PRIMARY KEY);
CREATE TABLE heir () INHERITS (parent);
INSERT INTO parent VALUES (1), (2);
INSERT INTO heir VALUES (1);

CREATE UNLOGGED TABLE forgotten (slot int PRIMARY KEY);

CREATE TABLE rewritten (slot int PRIMARY KEY);
CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.slot := NEW.slot + 1; RETURN NEW; END';
CREATE TRIGGER rewriting BEFORE INSERT ON rewritten FOR EACH ROW EXECUTE FUNCTION rewrite();
CREATE TABLE echoed (slot int PRIMARY KEY);
CREATE FUNCTION echo() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO soft VALUES (9, now()); RETURN NULL; END';
CREATE TRIGGER echoing AFTER INSERT ON echoed FOR EACH ROW EXECUTE FUNCTION echo();
ALTER TABLE echoed ENABLE ALWAYS TRIGGER echoing;
CREATE TABLE ruled (slot int PRIMARY KEY);
CREATE RULE ruling AS ON INSERT TO ruled DO ALSO NOTHING;

CREATE TABLE fractions (amount float8 PRIMARY KEY);
INSERT INTO fractions VALUES (0.1::float8 + 0.2::float8), (0.3), (0.4);

CREATE TABLE calls (tenant_id int, request_key uuid PRIMARY KEY);
CREATE TABLE empty_words (delivery_id text PRIMARY KEY);
INSERT INTO empty_words VALUES ('null'), ('N/A'), ('r-1');

CREATE SEQUENCE circle MAXVALUE 10 CYCLE;
CREATE TABLE narrow (id smallserial PRIMARY KEY, slot int NOT NULL UNIQUE);
SELECT setval('narrow_id_seq', 20000);
CREATE TABLE vouchers (code varchar(4) COLLATE "C" PRIMARY KEY);
INSERT INTO vouchers SELECT to_char(n, 'FM0000') FROM generate_series(1, 300) n;
ANALYZE vouchers;

DO $$ BEGIN
  IF current_setting('server_version_num')::int >= 170000 THEN
    CREATE COLLATION changed_order (provider = builtin, locale = 'C.UTF-8');
  ELSE
    CREATE COLLATION changed_order (provider = icu, locale = 'en');
  END IF;
END $$;
CREATE TABLE resorted (slot int NOT NULL UNIQUE, name text COLLATE changed_order NOT NULL);
CREATE UNIQUE INDEX resorted_name ON resorted (name, slot);
UPDATE pg_collation SET collversion = '0' WHERE collname = 'changed_order';

CREATE TABLE copied (a int);
INSERT INTO copied VALUES (1), (1);
CREATE SUBSCRIPTION one CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE);
CREATE SUBSCRIPTION two CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE);
INSERT INTO pg_subscription_rel SELECT oid, 'copied'::regclass, 'r', NULL FROM pg_subscription
  WHERE subname IN ('one', 'two') AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database());
CREATE TABLE sent (id int PRIMARY KEY, slot int NOT NULL UNIQUE);
CREATE PUBLICATION narrow_view FOR TABLE sent (id);
"""
POSTGRES_FAILS = "CREATE UNIQUE INDEX CONCURRENTLY unfinished_slot ON unfinished (slot)"  # and leaves an invalid index

EXPECTED_POSTGRES: Counts = {
    ("SK101", "public.bare"): [(2, 3)],
    ("SK101", "public.collided"): [(0, 0)],
    ("SK127", "public.collided.id"): [(1, 1)],
    ("SK101", "public.heir"): [(0, 0)],
    ("SK101", "public.copied"): [(1, 1)],
    ("SK102", "public.null_pair.null_pair_tenant_id_slot_key"): [(1, 2)],
    ("SK102", "public.null_single.null_single_slot_key"): [(1, 1)],
    ("SK103", "public.part.part_open"): [(1, 2)],
    ("SK103", "public.soft.soft_live"): [None],
    ("SK104", "public.spelled.spelled_pkey"): [(1, 4)],
    ("SK104", "public.empty_words.empty_words_pkey"): [(0, 0)],
    ("SK104", "public.vouchers.vouchers_pkey"): [(0, 0)],
    ("SK104", "public.resorted.resorted_name"): [(0, 0)],
    ("SK105", "public.unfinished.unfinished_slot"): [(1, 2)],
    ("SK106", "public.late.late_slot"): [None],
    ("SK107", "public.payments.idempotency_key"): [(1, 1)],
    ("SK107", "public.refunds.event_id"): [None],  # events.id is what it refers to
    ("SK107", "public.refunds.email"): [(0, 0)],
    ("SK108", "public.visits"): [(1, 1)],
    ("SK109", "public.diluted.diluted_pkey"): [(1, 2)],
    ("SK110", "public.daily.daily_pkey"): [(1, 1)],
    ("SK111", "public.sites_us"): [(1, 1)],
    ("SK112", "public.parent.parent_pkey"): [(1, 1)],
    ("SK113", "public.forgotten"): [None],
    ("SK114", "public.rewritten.rewritten_pkey"): [None],
    ("SK115", "public.echoed.echoing"): [None],
    ("SK116", "public.fractions.fractions_pkey"): [(1, 1)],
    ("SK117", "public.ruled.ruling"): [None],
    ("SK118", "public.calls.calls_pkey"): [None],
    ("SK120", "public.empty_words.delivery_id"): [(2, 2)],
    ("SK121", "public.circle"): [None],
    ("SK121", "public.narrow_id_seq"): [None],
    ("SK122", "public.resorted.resorted_name"): [(0, 0)],
    ("SK123", "fsync = off (the server)"): [None],
    ("SK123", "synchronous_commit = off (the database)"): [None],
    ("SK124", "public.copied"): [(1, 1)],
    ("SK125", "public.copied"): [None],
    ("SK126", "public.sent.sent_slot_key"): [None],
    ("SK128", "public.vouchers.code"): [None],
}

MYSQL = """
CREATE TABLE healthy (id bigint AUTO_INCREMENT PRIMARY KEY, tenant_id int NOT NULL, idempotency_key binary(16) NOT NULL,
  amount decimal(10, 2) NOT NULL, created_at timestamp DEFAULT current_timestamp, UNIQUE (tenant_id, idempotency_key));
CREATE TABLE healthy_lines (healthy_id bigint, line int, PRIMARY KEY (healthy_id, line),
  FOREIGN KEY (healthy_id) REFERENCES healthy (id));
INSERT INTO healthy (tenant_id, idempotency_key, amount) VALUES (1, 'a', 5), (2, 'a', 5), (1, 'b', 5);
CREATE TABLE bare (a int, b varchar(20));
INSERT INTO bare VALUES (1, 'x'), (1, 'x'), (1, 'x'), (1, 'X'), (2, NULL), (2, NULL);
CREATE TABLE collided (id INT, amount INT);
INSERT INTO collided VALUES (1, 5), (1, 6), (2, 5);
CREATE TABLE null_pair (tenant_id int NOT NULL, slot int, UNIQUE null_slot (tenant_id, slot));
INSERT INTO null_pair VALUES (1, NULL), (1, NULL), (1, NULL), (2, NULL), (1, 1);
CREATE TABLE spelled (name varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY);
INSERT INTO spelled VALUES ('Order 1'), ('\u00a0order 1'), ('order\u00a01'), ('or\u200bder 1'), ('b'), ('bus'), ('bu');
CREATE TABLE payments (id bigint AUTO_INCREMENT PRIMARY KEY, tenant_id int, request_id varchar(40), amount int);
INSERT INTO payments (tenant_id, request_id) VALUES (1, 'k'), (1, 'k'), (2, 'k'), (1, NULL), (1, NULL);
CREATE TABLE visits (id bigint AUTO_INCREMENT PRIMARY KEY, page varchar(40),
  created_at datetime DEFAULT current_timestamp);
INSERT INTO visits (page, created_at) VALUES ('a', '2026-01-01 10:00'), ('a', '2026-01-01 10:01'),
  ('a', '2026-01-03 10:02'), ('b', '2026-01-01 10:00');
CREATE TABLE diluted (order_ref bigint, created_at datetime(6) DEFAULT current_timestamp(6),
  PRIMARY KEY (order_ref, created_at));
INSERT INTO diluted VALUES (1, '2026-01-01'), (1, '2026-01-02'), (1, '2026-01-03');
CREATE TABLE daily (event_id bigint, day date, PRIMARY KEY (event_id, day)) PARTITION BY RANGE COLUMNS (day)
  (PARTITION p1 VALUES LESS THAN ('2026-01-02'), PARTITION p2 VALUES LESS THAN (MAXVALUE));
INSERT INTO daily VALUES (1, '2026-01-01'), (1, '2026-01-02');
CREATE TABLE rewritten (slot int PRIMARY KEY);
CREATE TRIGGER rewriting BEFORE INSERT ON rewritten FOR EACH ROW SET NEW.slot = NEW.slot + 1;
CREATE TABLE fractions (amount double PRIMARY KEY);
INSERT INTO fractions VALUES (0.1e0 + 0.2e0), (0.3e0), (0.4e0);
CREATE TABLE calls (tenant_id int, request_key binary(16) PRIMARY KEY);
CREATE TABLE empty_words (delivery_id varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY);
INSERT INTO empty_words VALUES ('null'), ('N/A'), ('r-1');
CREATE TABLE narrow (id smallint AUTO_INCREMENT PRIMARY KEY, slot int NOT NULL UNIQUE) AUTO_INCREMENT = 20000;
CREATE TABLE memory_keys (slot int PRIMARY KEY) ENGINE = MEMORY;
CREATE TABLE prefixed (slot int PRIMARY KEY, path varchar(40) NOT NULL, UNIQUE path_start (path(5)));
CREATE TABLE folded (name varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY);
"""
EXPECTED_MYSQL: Counts = {
    ("SK101", "bare"): [(2, 3)],
    ("SK101", "collided"): [(0, 0)],
    ("SK127", "collided.id"): [(1, 1)],
    ("SK102", "null_pair.null_slot"): [(1, 2)],
    ("SK104", "spelled.PRIMARY"): [(1, 3)],
    ("SK104", "empty_words.PRIMARY"): [(0, 0)],
    ("SK107", "payments.request_id"): [(1, 1)],
    ("SK108", "visits"): [(1, 1)],
    ("SK109", "diluted.PRIMARY"): [(1, 2)],
    ("SK110", "daily.PRIMARY"): [(1, 1)],
    ("SK114", "rewritten.PRIMARY"): [None],
    ("SK116", "fractions.PRIMARY"): [(1, 1)],
    ("SK118", "calls.PRIMARY"): [None],
    ("SK120", "empty_words.delivery_id"): [(2, 2)],
    ("SK121", "narrow.id"): [None],
    ("SK201", "memory_keys"): [None],
    ("SK201", "prefixed.path_start"): [None],
    ("SK201", "folded.PRIMARY"): [None],
}

SQLITE = """
CREATE TABLE healthy (id INTEGER PRIMARY KEY, tenant_id INT NOT NULL, idempotency_key INT NOT NULL, amount INT NOT NULL,
  created_at TIMESTAMP DEFAULT current_timestamp, UNIQUE (tenant_id, idempotency_key));
CREATE TABLE healthy_lines (healthy_id INT NOT NULL REFERENCES healthy, line INT NOT NULL,
  PRIMARY KEY (healthy_id, line));
INSERT INTO healthy (tenant_id, idempotency_key, amount) VALUES (1, 1, 5), (2, 1, 5), (1, 2, 5);
CREATE TABLE bare (a INT, b TEXT);
INSERT INTO bare VALUES (1, 'x'), (1, 'x'), (1, 'x'), (1, 'X'), (2, NULL), (2, NULL);
CREATE TABLE collided (id INT, amount INT);
INSERT INTO collided VALUES (1, 5), (1, 6), (2, 5);
CREATE TABLE null_pair (tenant_id INT NOT NULL, slot INT, UNIQUE (tenant_id, slot));
INSERT INTO null_pair VALUES (1, NULL), (1, NULL), (1, NULL), (2, NULL), (1, 1);
CREATE TABLE part (id INTEGER PRIMARY KEY, order_ref INT NOT NULL, state INT NOT NULL);
CREATE UNIQUE INDEX part_open ON part (order_ref) WHERE state = 1;
INSERT INTO part (order_ref, state) VALUES (1, 1), (1, 2), (1, 2);
CREATE TABLE spelled (name TEXT NOT NULL PRIMARY KEY);
INSERT INTO spelled VALUES ('Order 1'), ('order 1 '), ('order\u00a01'), ('\uff4frder\t1'), ('or\u200bder 1'),
  ('b'), ('\u00e9s'), ('\u00e9'), ('bus'), ('bu');
CREATE TABLE payments (id INTEGER PRIMARY KEY, tenant_id INT, request_id TEXT, amount INT);
INSERT INTO payments (tenant_id, request_id) VALUES (1, 'k'), (1, 'k'), (2, 'k'), (1, NULL), (1, NULL);
CREATE TABLE visits (id INTEGER PRIMARY KEY, page TEXT, created_at TIMESTAMP DEFAULT current_timestamp);
INSERT INTO visits (page, created_at) VALUES ('a', '2026-01-01 10:00:00'), ('a', '2026-01-01 10:01:00'),
  ('a', '2026-01-03 10:02:00'), ('b', '2026-01-01 10:00:00');
CREATE TABLE diluted (order_ref INT NOT NULL, created_at TIMESTAMP NOT NULL, UNIQUE (order_ref, created_at));
INSERT INTO diluted VALUES (1, '2026-01-01'), (1, '2026-01-02'), (1, '2026-01-03');
CREATE TABLE fractions (amount REAL NOT NULL UNIQUE);
INSERT INTO fractions VALUES (0.1 + 0.2), (0.3), (0.4);
CREATE TABLE calls (tenant_id INT, request_key INT NOT NULL UNIQUE);
CREATE TABLE empty_words (delivery_id TEXT NOT NULL PRIMARY KEY);
INSERT INTO empty_words VALUES ('null'), ('N/A'), ('r-1');
CREATE TABLE vouchers (code VARCHAR(4) NOT NULL UNIQUE);
WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 300)
  INSERT INTO vouchers SELECT printf('%04d', n) FROM n;
CREATE TABLE null_primary (slot INT PRIMARY KEY);
INSERT INTO null_primary VALUES (NULL), (NULL), (NULL), (1);
CREATE TABLE untyped (slot NOT NULL UNIQUE);
INSERT INTO untyped VALUES (1), ('1'), (x'31'), (2);
CREATE TABLE folded (name TEXT NOT NULL COLLATE NOCASE UNIQUE);
INSERT INTO folded VALUES ('\u00c9va'), ('\u00e9va'), ('b');
"""
EXPECTED_SQLITE: Counts = {
    ("SK101", "bare"): [(2, 3)],
    ("SK101", "collided"): [(0, 0)],
    ("SK127", "collided.id"): [(1, 1)],
    ("SK102", "null_pair.sqlite_autoindex_null_pair_1"): [(1, 2)],
    ("SK103", "part.part_open"): [(1, 2)],
    ("SK104", "spelled.sqlite_autoindex_spelled_1"): [(1, 4)],
    ("SK104", "empty_words.sqlite_autoindex_empty_words_1"): [(0, 0)],
    ("SK104", "vouchers.sqlite_autoindex_vouchers_1"): [(0, 0)],
    ("SK107", "payments.request_id"): [(1, 1)],
    ("SK108", "visits"): [(1, 1)],
    ("SK109", "diluted.sqlite_autoindex_diluted_1"): [(1, 2)],
    ("SK116", "fractions.sqlite_autoindex_fractions_1"): [(1, 1)],
    ("SK118", "calls.sqlite_autoindex_calls_1"): [None],
    ("SK120", "empty_words.delivery_id"): [(2, 2)],
    ("SK128", "vouchers.code"): [None],
    ("SK301", "null_primary.sqlite_autoindex_null_primary_1"): [(1, 2)],
    ("SK301", "untyped.sqlite_autoindex_untyped_1"): [(1, 2)],
    ("SK301", "folded.sqlite_autoindex_folded_1"): [(1, 1)],
}
