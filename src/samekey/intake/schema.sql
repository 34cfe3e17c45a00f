-- The tables of the intake, for PostgreSQL and for SQLite.

CREATE TABLE IF NOT EXISTS samekey_intake_meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS samekey_intake_environments (
    name TEXT PRIMARY KEY,
    created_at DOUBLE PRECISION NOT NULL
);

-- API keys: only their digests.
CREATE TABLE IF NOT EXISTS samekey_intake_api_keys (
    id TEXT PRIMARY KEY,
    environment TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    created_at DOUBLE PRECISION NOT NULL,
    revoked_at DOUBLE PRECISION
);

-- Generations of keys that were raised at least once. A key without a row has generation 0 and the first secret.
CREATE TABLE IF NOT EXISTS samekey_intake_generations (
    environment TEXT NOT NULL,
    digest TEXT NOT NULL,
    generation INTEGER NOT NULL,
    secret INTEGER NOT NULL,
    PRIMARY KEY (environment, digest)
);

CREATE TABLE IF NOT EXISTS samekey_intake_runs (
    id TEXT PRIMARY KEY,
    environment TEXT NOT NULL,
    task TEXT NOT NULL,
    digest TEXT,
    generation INTEGER NOT NULL,
    state TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    due_at DOUBLE PRECISION,      -- when its time to live ends, while it is queued
    tags TEXT NOT NULL,           -- JSON
    batch TEXT,
    unlisted INTEGER NOT NULL,    -- 1: the filter of known keys may not have its key
    facts TEXT NOT NULL,          -- JSON: everything else
    payload BYTEA
);
CREATE UNIQUE INDEX IF NOT EXISTS samekey_intake_runs_key
    ON samekey_intake_runs (environment, digest, generation) WHERE digest IS NOT NULL;
CREATE INDEX IF NOT EXISTS samekey_intake_runs_created ON samekey_intake_runs (environment, created_at, id);
CREATE INDEX IF NOT EXISTS samekey_intake_runs_unlisted ON samekey_intake_runs (environment) WHERE unlisted = 1;
CREATE INDEX IF NOT EXISTS samekey_intake_runs_batch ON samekey_intake_runs (batch) WHERE batch IS NOT NULL;
CREATE INDEX IF NOT EXISTS samekey_intake_runs_due ON samekey_intake_runs (due_at) WHERE due_at IS NOT NULL;

-- The buffer of the embedded default and of strict mode.
CREATE TABLE IF NOT EXISTS samekey_intake_buffer (
    environment TEXT NOT NULL,
    id TEXT NOT NULL,
    accepted BIGINT NOT NULL,        -- microseconds
    fence INTEGER NOT NULL,
    leased_until BIGINT NOT NULL,    -- microseconds; 0: free
    dead TEXT,                       -- why it can never be written
    digest TEXT,
    generation INTEGER NOT NULL,
    blob BYTEA NOT NULL,
    log TEXT NOT NULL,               -- JSON: the operations
    PRIMARY KEY (environment, id)
);
CREATE INDEX IF NOT EXISTS samekey_intake_buffer_order ON samekey_intake_buffer (environment, accepted);

CREATE TABLE IF NOT EXISTS samekey_intake_gates (
    environment TEXT PRIMARY KEY,
    arrival BIGINT NOT NULL,
    held_until BIGINT NOT NULL,
    accepted BIGINT NOT NULL,        -- the time of the last accepted entry: no two have the same
    depth BIGINT NOT NULL            -- entries that are not drained, dead letters not counted
);

CREATE TABLE IF NOT EXISTS samekey_intake_batches (
    id TEXT PRIMARY KEY,
    environment TEXT NOT NULL,
    key TEXT,
    expected INTEGER NOT NULL,
    sealed_at DOUBLE PRECISION,
    created_at DOUBLE PRECISION NOT NULL
);
CREATE TABLE IF NOT EXISTS samekey_intake_batch_items (
    batch TEXT NOT NULL,
    number INTEGER NOT NULL,
    run TEXT NOT NULL,
    PRIMARY KEY (batch, number)
);

CREATE TABLE IF NOT EXISTS samekey_intake_packets (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,
    content_type TEXT NOT NULL,
    content BYTEA NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (environment, name)
);
