-- For MariaDB 10.6 and MySQL 8.0, or newer. A CREATE TABLE commits by itself here, so every statement may be said twice:
-- a migration that was interrupted is simply carried out again, and the schema's number is written last.
--
-- Text is utf8mb4 with a binary collation: `a`, `A` and `á` are three keys. Times are seconds of the server's clock, UTC,
-- exact to the microsecond; NOW() in a time zone of its own would be ambiguous for one hour each year.

CREATE TABLE IF NOT EXISTS samekey_meta (
  name  VARCHAR(32) NOT NULL PRIMARY KEY,
  value VARCHAR(255) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS samekey_records (
  digest        BINARY(16) NOT NULL PRIMARY KEY,  -- 128 bits of operation, tenant and key
  operation     VARCHAR(255) NOT NULL,
  tenant        VARCHAR(255),
  `key`         VARCHAR(1024) NOT NULL,
  state         VARCHAR(16) NOT NULL,
  token         BIGINT NOT NULL,                  -- with attempt: the fence
  attempt       VARCHAR(64) NOT NULL,
  fingerprint   VARBINARY(64) NOT NULL,
  form          MEDIUMTEXT NOT NULL,
  boundary      MEDIUMTEXT NOT NULL,
  version       BIGINT NOT NULL,
  attempts      BIGINT NOT NULL,
  created_at    DOUBLE NOT NULL,
  changed_at    DOUBLE NOT NULL,
  lease_until   DOUBLE NOT NULL,
  unsure        BOOLEAN NOT NULL,
  begun_at      DOUBLE,
  first_sent_at DOUBLE,
  round         BIGINT NOT NULL,
  settled_by    MEDIUMTEXT,
  settled_at    DOUBLE,
  retain_until  DOUBLE,                           -- null while started or in_doubt: unknown is never forgotten
  result        LONGBLOB,
  error         MEDIUMTEXT,
  asker         MEDIUMTEXT,
  ask_until     DOUBLE NOT NULL,
  story         LONGTEXT NOT NULL,                -- fields, attributes, evidence and moves, as JSON
  content       BINARY(16),                       -- digest of the payload without what makes the key
  payload       LONGBLOB,                         -- the kept payload, sealed
  notes         MEDIUMBLOB,
  terms         VARBINARY(512),                   -- search terms that takes and settles brought, 16 bytes each
  inquiry       MEDIUMTEXT,                       -- as JSON: looks at a doubt, and what was reported to callers; rare
  hold_until    DOUBLE,                           -- when a dead hold of Repeatable ends by itself; null for all others
  provider      BINARY(16),                       -- the search term of the claim's provider key
  request       BINARY(16),                       -- and that of its request id
  -- For the sweep; and what is held or in doubt has no retention yet, so that few rows are read to list it.
  INDEX samekey_by_retention (retain_until),
  -- For lists, newest first; every claim is written at its end.
  INDEX samekey_by_creation (created_at),
  -- Search terms of claims. As columns: with a table of their own each claim would be a transaction of two statements.
  INDEX samekey_by_provider (provider),
  INDEX samekey_by_request (request)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Records whose late truth is not delivered yet: written in the transaction that writes the record.
CREATE TABLE IF NOT EXISTS samekey_late (
  digest BINARY(16) NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- The search terms of records that have others: written in the transaction that writes the record.
CREATE TABLE IF NOT EXISTS samekey_terms (
  digest BINARY(16) NOT NULL,
  term   BINARY(16) NOT NULL,
  PRIMARY KEY (digest, term),
  INDEX samekey_by_term (term)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS samekey_audit (
  id        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at        DOUBLE NOT NULL,
  who       MEDIUMTEXT NOT NULL,
  action    VARCHAR(16) NOT NULL,
  operation VARCHAR(255) NOT NULL,
  tenant    VARCHAR(255),
  `key`     VARCHAR(1024) NOT NULL,
  `before`  VARCHAR(16) NOT NULL,
  `after`   VARCHAR(16) NOT NULL,
  why       MEDIUMTEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Attempts by the minute, for charts and alarms; kept for 14 days. Names as bytes: even a binary collation takes "a" and
-- "a " for one series.
CREATE TABLE IF NOT EXISTS samekey_counts (
  minute    INT NOT NULL,                         -- seconds since 1970, divided by 60
  operation VARBINARY(255) NOT NULL,
  source    VARBINARY(1024) NOT NULL,
  outcome   VARBINARY(128) NOT NULL,
  number    BIGINT NOT NULL,
  PRIMARY KEY (minute, operation, source, outcome)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- What a person should look at.
CREATE TABLE IF NOT EXISTS samekey_findings (
  id             VARCHAR(64) NOT NULL PRIMARY KEY,
  at             DOUBLE NOT NULL,
  kind           VARCHAR(64) NOT NULL,
  severity       VARCHAR(16) NOT NULL,
  operation      VARCHAR(255) NOT NULL,
  tenant         VARCHAR(255),
  digest         VARCHAR(64) NOT NULL,
  title          VARCHAR(200) NOT NULL,
  evidence       MEDIUMTEXT NOT NULL,             -- JSON
  proposal       MEDIUMTEXT NOT NULL,
  source         VARCHAR(255) NOT NULL,
  accepted_by    MEDIUMTEXT,
  accepted_why   MEDIUMTEXT,
  accepted_until DOUBLE,
  INDEX samekey_found (at, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Messages that were set aside.
CREATE TABLE IF NOT EXISTS samekey_parked (
  id             VARCHAR(64) NOT NULL PRIMARY KEY,
  at             DOUBLE NOT NULL,
  operation      VARCHAR(255) NOT NULL,
  tenant         VARCHAR(255),
  `key`          MEDIUMTEXT NOT NULL,
  destination    VARCHAR(255) NOT NULL,
  headers        MEDIUMTEXT NOT NULL,             -- JSON
  body           MEDIUMBLOB NOT NULL,
  kind           VARCHAR(32) NOT NULL,
  reason         MEDIUMTEXT NOT NULL,
  redelivered_at DOUBLE,                          -- null while it waits
  redelivered_by MEDIUMTEXT,
  INDEX samekey_parked_at (at, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

INSERT IGNORE INTO samekey_meta (name, value) VALUES
  ('epoch', REPLACE(UUID(), '-', '')),                       -- tables that were dropped and made again are another
  ('born', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),  -- incarnation, and began then
  ('last_token', '0'),                                       -- the highest token of any record that was deleted
  ('oldest_client', '1'),                                    -- the oldest schema whose code still works with this one
  ('schema', '1');
