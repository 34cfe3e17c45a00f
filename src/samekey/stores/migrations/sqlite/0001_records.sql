CREATE TABLE samekey_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE samekey_records (
  digest        BLOB PRIMARY KEY,  -- 128 bits of operation, tenant and key
  operation     TEXT NOT NULL,
  tenant        TEXT,
  key           TEXT NOT NULL,
  state         TEXT NOT NULL,
  token         INTEGER NOT NULL,  -- with attempt: the fence
  attempt       TEXT NOT NULL,
  fingerprint   BLOB NOT NULL,
  form          TEXT NOT NULL,
  boundary      TEXT NOT NULL,
  version       INTEGER NOT NULL,
  attempts      INTEGER NOT NULL,
  created_at    REAL NOT NULL,
  changed_at    REAL NOT NULL,
  lease_until   REAL NOT NULL,     -- on the clock that lease_clock names, not the wall clock
  lease_clock   TEXT NOT NULL,
  unsure        INTEGER NOT NULL,
  begun_at      REAL,
  first_sent_at REAL,
  round         INTEGER NOT NULL,
  settled_by    TEXT,
  settled_at    REAL,
  retain_until  REAL,
  result        BLOB,
  error         TEXT,
  asker         TEXT,
  ask_until     REAL NOT NULL,
  story         TEXT NOT NULL,     -- as JSON: fields, attributes, evidence, and moves unless they are plain
  content       BLOB,              -- digest of the payload without what makes the key
  payload       BLOB,              -- the kept payload, sealed
  notes         BLOB,
  terms         BLOB,              -- search terms, 16 bytes each
  inquiry       TEXT               -- as JSON: looks at a doubt, and what was reported to callers; rare
);

-- No second index: each one is written by every claim and every settle (it cost a fifth of both), and an embedded
-- store is small enough to be searched from end to end by the few who list it.

CREATE TABLE samekey_audit (
  id        INTEGER PRIMARY KEY,
  at        REAL NOT NULL,
  who       TEXT NOT NULL,
  action    TEXT NOT NULL,
  operation TEXT NOT NULL,
  tenant    TEXT,
  key       TEXT NOT NULL,
  before    TEXT NOT NULL,
  after     TEXT NOT NULL,
  why       TEXT NOT NULL
);

CREATE TABLE samekey_counts (      -- attempts by the minute, for charts and alarms; kept for 14 days
  minute    INTEGER NOT NULL,      -- seconds since 1970, divided by 60
  operation TEXT NOT NULL,
  source    TEXT NOT NULL,
  outcome   TEXT NOT NULL,
  number    INTEGER NOT NULL,
  PRIMARY KEY (minute, operation, source, outcome)
) WITHOUT ROWID;

CREATE TABLE samekey_findings (    -- what a person should look at
  id             TEXT PRIMARY KEY,
  at             REAL NOT NULL,
  kind           TEXT NOT NULL,
  severity       TEXT NOT NULL,
  operation      TEXT NOT NULL,
  tenant         TEXT,
  digest         TEXT NOT NULL,
  title          TEXT NOT NULL,
  evidence       TEXT NOT NULL,    -- JSON
  proposal       TEXT NOT NULL,
  source         TEXT NOT NULL,
  accepted_by    TEXT,
  accepted_why   TEXT,
  accepted_until REAL
);

CREATE INDEX samekey_found ON samekey_findings (at, id);

CREATE TABLE samekey_parked (      -- messages that were set aside
  id             TEXT PRIMARY KEY,
  at             REAL NOT NULL,
  operation      TEXT NOT NULL,
  tenant         TEXT,
  key            TEXT NOT NULL,
  destination    TEXT NOT NULL,
  headers        TEXT NOT NULL,    -- JSON
  body           BLOB NOT NULL,
  kind           TEXT NOT NULL,
  reason         TEXT NOT NULL,
  redelivered_at REAL,             -- null while it waits
  redelivered_by TEXT
);

CREATE INDEX samekey_parked_at ON samekey_parked (at, id);
