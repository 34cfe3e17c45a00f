-- samekey 0001: records, tokens, audit, and one function for each command.
-- Phase: pre (before the first deploy). It makes new objects only and takes no lock on anything of yours.
--
-- `samekey.core.register` defines what each command does; a function here does the same in one statement, and the
-- conformance suite compares the two. A refused command changes nothing and returns the record as it is.
-- Every time is clock_timestamp(): now() is the start of the transaction, and a lease must not start in the past.
-- Where the client knows the whole record already - a claim it won, a settle of the record it had seen - the reply is
-- short: digest, token and changed_at, and null for the rest.
--
-- The role that runs the application needs: SELECT, INSERT, UPDATE, DELETE on samekey_records, samekey_counts
-- and samekey_parked;
-- SELECT, INSERT, UPDATE on samekey_meta and samekey_findings; SELECT, INSERT on samekey_audit; USAGE on samekey_tokens.

CREATE TABLE samekey_meta (
  name  text PRIMARY KEY,
  value text NOT NULL
);

CREATE SEQUENCE samekey_tokens AS bigint CACHE 1;  -- one by one: a key that was freed must get a higher token

CREATE TABLE samekey_records (
  digest        uuid PRIMARY KEY,           -- 128 bits of operation, tenant and key
  attempt       uuid NOT NULL,              -- with token: the fence
  token         bigint NOT NULL,
  created_at    double precision NOT NULL,  -- seconds since 1970, by this server's clock, like every time here
  changed_at    double precision NOT NULL,
  lease_until   double precision NOT NULL,
  begun_at      double precision,
  first_sent_at double precision,
  settled_at    double precision,
  retain_until  double precision,           -- null while started or in_doubt: unknown is never forgotten. Only a dead
                                            -- hold of Repeatable ends by itself, and has a value here
  ask_until     double precision,
  waited_for    bigint,                     -- the token of the hold that a caller waits for: its end is notified
  version       integer NOT NULL,
  attempts      integer NOT NULL,
  round         integer NOT NULL,
  unsure        boolean NOT NULL,
  happened      boolean NOT NULL,           -- evidence shows that the effect happened: it must not run again
  state         text NOT NULL,
  operation     text NOT NULL,
  tenant        text,
  key           text NOT NULL,
  fingerprint   bytea NOT NULL,
  form          text NOT NULL,
  boundary      text NOT NULL,
  fields        text,                       -- JSON: [[name, hex digest], ...]
  attributes    text,                       -- JSON: [[name, value], ...]
  settled_by    text,
  error         text,
  asker         text,
  result        bytea,
  moves         text,                       -- one JSON array on each line, the last 16; see samekey_moved for null
  evidence      jsonb,                      -- [[at, token, attempt, state, hex result, why], ...]
  content       bytea,                      -- digest of the payload without what makes the key
  payload       bytea,                      -- the kept payload, sealed
  notes         bytea,
  terms         uuid[],                     -- search terms: of the request id, and what takes and settles brought
  inquiry       jsonb,                      -- looks at a doubt, and what callers got; null for most records
  provider      uuid                        -- the search term of the claim's provider key
) WITH (
  fillfactor = 70,                          -- room for the settled row on the same page as its claim
  autovacuum_vacuum_scale_factor = 0.05     -- two of three row versions are dead soon: a fifth of the table is late
);

-- Every claim and every settle writes each of these, so there are few of them. A partial index is not free for the rows
-- that are not in it: the server copies and plans its predicate for each statement, at a third of the cost of an entry.
--
-- What is past retention; null for what is held or in doubt.
CREATE INDEX samekey_retained ON samekey_records (retain_until);
-- Pages of records, of one state each; a page of several states is merged from a page of each. A BRIN index is cheaper,
-- but after a sweep new rows are spread over the whole table.
-- With a collation of its own, so that only these pages use it: a statement about one key has its digest, and with a plan
-- that was made while the table was empty it would read all that is held instead.
CREATE INDEX samekey_states ON samekey_records (state COLLATE "C", created_at, digest);
-- Search terms. With a table of their own, each claim and each sweep would run one more statement. The term of the
-- provider key has a column, because nearly every record has one; the others are few, and null where there are none.
-- No fastupdate: one unlucky settle would have to enter what others left.
CREATE INDEX samekey_provider ON samekey_records (provider) WITH (deduplicate_items = off);  -- no two are equal
CREATE INDEX samekey_terms ON samekey_records USING gin (terms) WITH (fastupdate = off) WHERE terms IS NOT NULL;

-- What a worker looks for: doubts by their next look, and late truths. Most records are not in it.
-- One index for both: a second one costs each claim and each settle as much as this one.
-- Without lease_until: then a renewal would write every index.
CREATE INDEX samekey_inquiries ON samekey_records (
  (coalesce(inquiry ->> 'late', '')), state, operation, ((inquiry ->> 'look_at')::double precision) NULLS FIRST
) WHERE inquiry IS NOT NULL;

CREATE TABLE samekey_audit (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        double precision NOT NULL,
  who       text NOT NULL,
  action    text NOT NULL,
  operation text NOT NULL,
  tenant    text,
  key       text NOT NULL,
  before    text NOT NULL,
  after     text NOT NULL,
  why       text NOT NULL
);

-- Attempts by the minute, for charts and alarms; kept for 14 days.
CREATE TABLE samekey_counts (
  minute    integer NOT NULL,               -- seconds since 1970, divided by 60
  operation text NOT NULL,
  source    text NOT NULL,
  outcome   text NOT NULL,
  number    bigint NOT NULL,
  PRIMARY KEY (minute, operation, source, outcome)
) WITH (fillfactor = 70);                   -- each row of the current minute is updated several times, on its page

-- What a person should look at.
CREATE TABLE samekey_findings (
  id             text COLLATE "C" PRIMARY KEY,
  at             double precision NOT NULL,
  kind           text NOT NULL,
  severity       text NOT NULL,
  operation      text NOT NULL,
  tenant         text,
  digest         text NOT NULL,
  title          text NOT NULL,
  evidence       text NOT NULL,             -- JSON
  proposal       text NOT NULL,
  source         text NOT NULL,
  accepted_by    text,
  accepted_why   text,
  accepted_until double precision
);
CREATE INDEX samekey_found ON samekey_findings (at, id);  -- pages, newest first

-- Messages that were set aside.
CREATE TABLE samekey_parked (
  id             text COLLATE "C" PRIMARY KEY,
  at             double precision NOT NULL,
  operation      text NOT NULL,
  tenant         text,
  key            text NOT NULL,
  destination    text NOT NULL,
  headers        text NOT NULL,             -- JSON
  body           bytea NOT NULL,
  kind           text NOT NULL,
  reason         text NOT NULL,
  redelivered_at double precision,          -- null while it waits
  redelivered_by text
);
CREATE INDEX samekey_parked_at ON samekey_parked (at, id);  -- pages, newest first

-- The moves of a record with one more, the last 16. Null stands for the story of nearly every record: it was claimed
-- by `attempt` at created_at, and settled by it at settled_at, for no other reason than `error`. To write that out for
-- each record took a tenth of a claim and its settle. So whatever changes one of these columns writes the moves.
CREATE FUNCTION samekey_moved(
  p_moves text, p_created_at double precision, p_token bigint, p_attempt uuid, p_state text,
  p_settled_at double precision, p_error text, p_at double precision, p_next_token bigint, p_next text, p_by text,
  p_next_error text, p_who text, p_why text
) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  known text := p_moves;
  holder text := replace(p_attempt::text, '-', '');
  lines text[];
BEGIN
  IF known IS NULL THEN
    known := concat('[', p_created_at, ',', p_token, ',"","started","', holder, '",""]');
    IF p_state <> 'started' THEN
      known := concat(
        known, chr(10), '[', p_settled_at, ',', p_token, ',"started","', p_state, '","', holder, '",',
        to_json(coalesce(p_error, '')), ']');
    END IF;
  END IF;
  lines := string_to_array(known, chr(10));
  IF cardinality(lines) > 15 THEN
    known := array_to_string(lines[cardinality(lines) - 14:], chr(10));
  END IF;
  RETURN concat(
    known, chr(10), '[', p_at, ',', p_next_token, ',"', p_state, '","', p_next, '",',
    coalesce(p_who, to_json(p_by)::text), ',', coalesce(p_why, to_json(coalesce(p_next_error, ''))::text), ']');
END
$$;

-- Callers wait for this record: notify them when this transaction commits. The flag is then cleared: null is returned.
-- The queue belongs to the whole server. A session that listens and never ends its transaction fills it, and then every
-- commit that notifies fails. Waiters read again by themselves, so a full queue costs them a moment, and never a write.
CREATE FUNCTION samekey_ring(p_digest uuid) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('samekey', replace(p_digest::text, '-', ''));
  END IF;
  RETURN NULL;
END
$$;


-- Search terms with more of them: each once, and no more than 32 besides that of the request id.
CREATE FUNCTION samekey_with_terms(p_terms uuid[], p_more text) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  SELECT array_agg(term ORDER BY place) FROM (
    SELECT term, min(place) AS place FROM unnest(p_terms || p_more::uuid[]) WITH ORDINALITY AS every (term, place)
    GROUP BY term ORDER BY place LIMIT 33
  ) AS kept
$$;


-- The inquiry after a settle, as `samekey.core.inquiry.after_settle` has it; not called where the caller just gets its
-- answer. p_teller: the holder settles, and its caller waits for the outcome.
CREATE FUNCTION samekey_inquired(
  p_inquiry jsonb, p_state text, p_teller boolean, p_answered boolean, p_error text, p_wall double precision
) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  reported jsonb := jsonb_strip_nulls(jsonb_build_object(
    'reported', p_inquiry -> 'reported', 'reported_at', p_inquiry -> 'reported_at', 'reported_error', p_inquiry -> 'reported_error'));
  newly jsonb := jsonb_build_object('reported_at', p_wall) || CASE WHEN p_error <> ''
    THEN jsonb_build_object('reported_error', p_error) ELSE '{}' END;
BEGIN
  IF p_state = 'in_doubt' THEN
    p_inquiry := coalesce(p_inquiry, '{}') - 'answered';
    IF (p_inquiry ->> 'reported') IS DISTINCT FROM 'failed' THEN
      p_inquiry := (p_inquiry - 'reported_error') || '{"reported": "unknown"}' || newly;
    END IF;
    RETURN p_inquiry || CASE WHEN p_answered THEN '{"answered": true}'::jsonb ELSE '{}' END;
  END IF;
  IF p_state = 'released' AND p_teller AND p_error IS NOT NULL THEN
    RETURN '{"reported": "failed"}'::jsonb || newly;
  END IF;
  IF p_state = 'completed' THEN
    IF NOT reported ? 'reported' THEN
      reported := jsonb_build_object('reported', 'unknown', 'reported_at', p_wall);
    END IF;
    RETURN reported || '{"late": "due"}';
  END IF;
  RETURN CASE WHEN reported ? 'reported' THEN reported END;
END
$$;


-- p_retain is null except for Repeatable.
CREATE FUNCTION samekey_open(
  p_digest uuid, p_operation text, p_tenant text, p_key text, p_attempt uuid, p_fingerprint bytea, p_form text,
  p_fields text, p_boundary text, p_lease double precision, p_sends boolean, p_attributes text, p_content bytea,
  p_payload bytea, p_retain double precision, p_provider uuid, p_request uuid
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  short samekey_records;
  wall double precision;
  fresh bigint;
BEGIN
  FOR lost_races IN 0..20 LOOP
    -- Read first: a replay stays read-only, with no transaction id, no WAL and no number drawn.
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
    wall := date_part('epoch', clock_timestamp());
    IF NOT FOUND THEN
      fresh := nextval('samekey_tokens');
      INSERT INTO samekey_records (
        digest, operation, tenant, key, state, token, attempt, fingerprint, form, fields, boundary, version, attempts,
        created_at, changed_at, lease_until, unsure, happened, first_sent_at, round, attributes, content, payload,
        retain_until, provider, terms
      ) VALUES (
        p_digest, p_operation, p_tenant, p_key, 'started', fresh, p_attempt, p_fingerprint, p_form, p_fields,
        p_boundary, 1, 1, wall, wall, wall + p_lease, false, false, CASE WHEN p_sends THEN wall END, 0, p_attributes,
        p_content, p_payload, wall + p_retain, p_provider, CASE WHEN p_request IS NOT NULL THEN ARRAY[p_request] END
      )
      ON CONFLICT (digest) DO NOTHING;  -- the write is the check: the attempt that inserts holds the key
      IF FOUND THEN
        short.digest := p_digest;
        short.token := fresh;
        short.changed_at := wall;
        RETURN short;
      END IF;
    ELSIF (
        r.retain_until <= wall
        AND (r.state IN ('completed', 'closed', 'released')
          OR r.state = 'started' AND r.lease_until <= wall AND split_part(r.boundary, ' ', 1) = 'repeatable')
      ) IS NOT TRUE
      OR (r.operation, r.key) <> (p_operation, p_key) OR r.tenant IS DISTINCT FROM p_tenant  -- the client reports it
    THEN
      RETURN r;
    ELSE
      fresh := greatest(r.token + 1, nextval('samekey_tokens'));
      UPDATE samekey_records SET
        state = 'started', token = fresh, attempt = p_attempt, fingerprint = p_fingerprint, form = p_form,
        fields = p_fields, boundary = p_boundary, version = version + 1, attempts = 1, created_at = wall,
        changed_at = wall, lease_until = wall + p_lease, unsure = false, happened = false, begun_at = NULL,
        first_sent_at = CASE WHEN p_sends THEN wall END, round = 0, settled_by = NULL, settled_at = NULL,
        retain_until = wall + p_retain, result = NULL, error = NULL, asker = NULL, ask_until = NULL,
        waited_for = NULL, attributes = p_attributes, evidence = NULL, content = p_content, payload = p_payload,
        notes = NULL, terms = CASE WHEN p_request IS NOT NULL THEN ARRAY[p_request] END, provider = p_provider,
        inquiry = NULL, moves = NULL
      WHERE digest = p_digest
        AND version = r.version    -- no write since this read,
        AND token = r.token        -- and it is not a later life of the key that reached the same version
        AND attempt = r.attempt
      RETURNING * INTO r;
      IF FOUND THEN
        RETURN r;
      END IF;
    END IF;
    -- Lost the race. The next SELECT has a new snapshot, so it sees the winner.
  END LOOP;
  RAISE EXCEPTION 'the key changes faster than it can be claimed' USING ERRCODE = 'lock_not_available';
END
$$;


-- Whether a caller's session sees the very table that the store writes: its search_path may change between two calls,
-- and every schema may have tables of these names.
CREATE FUNCTION samekey_here(p_table oid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF to_regclass('samekey_records')::oid IS DISTINCT FROM p_table THEN
    RAISE EXCEPTION 'these are other samekey tables than those of the store' USING ERRCODE = 'SK001';
  END IF;
  RETURN true;
END
$$;


-- The same inside a transaction of the caller's: waits p_lock_timeout for a transaction that holds the key, and leaves
-- the caller's lock_timeout as it was. An error on the way is rolled back to a savepoint, and the setting with it.
CREATE FUNCTION samekey_open_waiting(
  p_table oid, p_lock_timeout text, p_digest uuid, p_operation text, p_tenant text, p_key text, p_attempt uuid,
  p_fingerprint bytea, p_form text, p_fields text, p_boundary text, p_lease double precision, p_sends boolean,
  p_attributes text, p_content bytea, p_payload bytea, p_retain double precision, p_provider uuid, p_request uuid
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  before text := current_setting('lock_timeout');
BEGIN
  IF to_regclass('samekey_records')::oid IS DISTINCT FROM p_table THEN
    PERFORM samekey_here(p_table);  -- raises; compared here first, because a call costs more than the comparison
  END IF;
  p_lock_timeout := set_config('lock_timeout', p_lock_timeout, true);  -- PERFORM would run a query for it
  r := samekey_open(
    p_digest, p_operation, p_tenant, p_key, p_attempt, p_fingerprint, p_form, p_fields, p_boundary, p_lease, p_sends,
    p_attributes, p_content, p_payload, p_retain, p_provider, p_request
  );
  before := set_config('lock_timeout', before, true);
  RETURN r;
END
$$;


-- Many claims as one transaction, and so one flush to disk. Each digest once, sorted by the caller: two batches in
-- opposite order would deadlock. The short replies to all claims that were won come in one row: digests, tokens, and the
-- time. The other records come whole, each in a row; one may come twice, and the later one is the newer.
CREATE FUNCTION samekey_open_many(
  p_digests uuid[], p_operations text[], p_tenants text[], p_keys text[], p_attempts uuid[], p_fingerprints bytea[],
  p_forms text[], p_fields text[], p_boundaries text[], p_leases double precision[], p_sends boolean[],
  p_attributes text[], p_contents bytea[], p_payloads bytea[], p_retains double precision[], p_providers uuid[],
  p_requests uuid[]
) RETURNS TABLE (
  shown samekey_records, told_digests uuid[], told_tokens bigint[], told_at double precision
) LANGUAGE plpgsql AS $$
DECLARE
  wall double precision := date_part('epoch', clock_timestamp());
  there integer;
  made integer;
BEGIN
  RETURN QUERY
    SELECT known, NULL::uuid[], NULL::bigint[], NULL::double precision FROM samekey_records known
    WHERE digest = ANY (p_digests)
      AND (
        retain_until <= wall
        AND (state IN ('completed', 'closed', 'released')
          OR state = 'started' AND lease_until <= wall AND split_part(boundary, ' ', 1) = 'repeatable')
      ) IS NOT TRUE;
  GET DIAGNOSTICS there = ROW_COUNT;
  IF there = cardinality(p_digests) THEN
    RETURN;  -- only replays: nothing is written
  END IF;
  WITH claims AS MATERIALIZED (
    SELECT c.*, nextval('samekey_tokens') AS fresh
    FROM unnest(
      p_digests, p_operations, p_tenants, p_keys, p_attempts, p_fingerprints, p_forms, p_fields, p_boundaries,
      p_leases, p_sends, p_attributes, p_contents, p_payloads, p_retains, p_providers, p_requests
    ) AS c (
      digest, operation, tenant, key, attempt, fingerprint, form, fields, boundary, lease, sends, attributes, content,
      payload, retain, provider, request
    )
    WHERE there = 0 OR NOT EXISTS (SELECT FROM samekey_records known WHERE known.digest = c.digest)
  ), won AS (
    INSERT INTO samekey_records AS r (
      digest, operation, tenant, key, state, token, attempt, fingerprint, form, fields, boundary, version, attempts,
      created_at, changed_at, lease_until, unsure, happened, first_sent_at, round, attributes, content, payload,
      retain_until, provider, terms
    )
    SELECT
      digest, operation, tenant, key, 'started', fresh, attempt, fingerprint, form, fields, boundary, 1, 1, wall, wall,
      wall + lease, false, false, CASE WHEN sends THEN wall END, 0, attributes, content, payload,
      wall + retain, provider, CASE WHEN request IS NOT NULL THEN ARRAY[request] END
    FROM claims
    ON CONFLICT (digest) DO NOTHING
    RETURNING r.digest, r.token
  )
  SELECT count(*), array_agg(digest), array_agg(token) INTO made, told_digests, told_tokens FROM won;
  told_at := wall;
  RETURN NEXT;
  IF there + made < cardinality(p_digests) THEN
    -- Another claim was faster, or a record is past its retention: one by one, each with a new snapshot.
    RETURN QUERY
      SELECT r, NULL::uuid[], NULL::bigint[], NULL::double precision
      FROM unnest(
        p_digests, p_operations, p_tenants, p_keys, p_attempts, p_fingerprints, p_forms, p_fields, p_boundaries,
        p_leases, p_sends, p_attributes, p_contents, p_payloads, p_retains, p_providers, p_requests
      ) AS c (
        digest, operation, tenant, key, attempt, fingerprint, form, fields, boundary, lease, sends, attributes,
        content, payload, retain, provider, request
      ),
      LATERAL samekey_open(
        c.digest, c.operation, c.tenant, c.key, c.attempt, c.fingerprint, c.form, c.fields, c.boundary, c.lease,
        c.sends, c.attributes, c.content, c.payload, c.retain, c.provider, c.request
      ) AS r;
  END IF;
END
$$;


CREATE FUNCTION samekey_take(
  p_digest uuid, p_seen_token bigint, p_seen_attempt uuid, p_seen_state text, p_attempt uuid, p_boundary text,
  p_lease double precision, p_sends boolean, p_terms text, p_retain double precision
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
  fresh bigint := nextval('samekey_tokens');
BEGIN
  UPDATE samekey_records SET
    state = 'started',
    token = greatest(token + 1, fresh),
    attempt = p_attempt,
    -- The unresolved attempt stays under the terms it was made under; a fresh start has today's.
    boundary = CASE WHEN state = 'in_doubt' THEN boundary ELSE p_boundary END,
    first_sent_at = CASE WHEN state = 'in_doubt' THEN first_sent_at WHEN p_sends THEN wall END,
    unsure = unsure OR state = 'in_doubt',
    attempts = attempts + 1, version = version + 1, changed_at = wall, lease_until = wall + p_lease,
    begun_at = NULL, settled_by = NULL, settled_at = NULL, retain_until = wall + p_retain, error = NULL,
    asker = NULL, ask_until = NULL,
    terms = CASE WHEN p_terms IS NULL THEN terms ELSE samekey_with_terms(terms, p_terms) END,
    waited_for = CASE WHEN waited_for = token THEN samekey_ring(digest) END,
    moves = samekey_moved(
      moves, created_at, token, attempt, state, settled_at, error, wall, greatest(token + 1, fresh), 'started',
      replace(p_attempt::text, '-', ''), CASE WHEN state = 'released' THEN '' ELSE 'taken over' END, NULL, NULL)
  WHERE digest = p_digest
    AND token = p_seen_token       -- no attempt took it since the caller read it
    AND attempt = p_seen_attempt   -- and the number was not drawn again
    AND state = p_seen_state
    AND NOT happened               -- the effect must not run again
    AND (
      state IN ('released', 'in_doubt')
      OR state = 'started'
        AND lease_until <= date_part('epoch', clock_timestamp())
        AND ' ' || boundary || ' ' LIKE '% marked %'
        AND begun_at IS NULL
        AND NOT unsure             -- that this attempt had not begun proves nothing about the one before it
    )
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


CREATE FUNCTION samekey_begin(p_digest uuid, p_seen_token bigint, p_seen_attempt uuid)
RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
BEGIN
  UPDATE samekey_records SET
    begun_at = wall, first_sent_at = coalesce(first_sent_at, wall), version = version + 1, changed_at = wall
  WHERE digest = p_digest
    AND token = p_seen_token
    AND attempt = p_seen_attempt
    AND state = 'started'
    AND begun_at IS NULL           -- or an earlier try of this command was carried out
    AND lease_until > date_part('epoch', clock_timestamp())
    AND NOT happened
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


CREATE FUNCTION samekey_renew(
  p_digest uuid, p_seen_token bigint, p_seen_attempt uuid, p_lease double precision, p_retain double precision
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
BEGIN
  UPDATE samekey_records SET
    lease_until = wall + p_lease, version = version + 1, changed_at = wall,
    retain_until = coalesce(wall + p_retain, retain_until)
  WHERE digest = p_digest
    AND token = p_seen_token
    AND attempt = p_seen_attempt
    AND state = 'started'
    AND lease_until > date_part('epoch', clock_timestamp())  -- a dead lease may already have been judged
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


-- p_from: the states this role may leave for p_state, from `samekey.core.states.NEXT`; p_retain is null for in_doubt;
-- p_for_all: the whole key is certain now; p_who and p_why are JSON strings for the move, both null where they are p_by
-- and p_error and the record need not keep the move (see samekey_moved); p_by is the plain name; p_operator_why is null except for people, whose actions are audited.
-- p_seen_version: the reply is short if the record was not written to between the client's read and this write.
-- p_or_fail: in a caller's transaction the holder's record must be there. If it is not, these are other tables or it is
-- another transaction: then nothing of the effect may be committed, and a COMMIT may follow in the same packet.
CREATE FUNCTION samekey_settle(
  p_digest uuid, p_seen_token bigint, p_seen_attempt uuid, p_from text, p_spares_live boolean, p_for_all boolean,
  p_state text, p_by text, p_result bytea, p_error text, p_who text, p_why text, p_retain double precision,
  p_next_round boolean, p_operator_why text, p_seen_version integer, p_notes bytea, p_terms text,
  p_teller boolean, p_answered boolean, p_or_fail boolean DEFAULT false
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
  done boolean := p_state = 'completed';
  was text;
  became integer;
BEGIN
  IF p_operator_why IS NOT NULL THEN
    SELECT state INTO was FROM samekey_records WHERE digest = p_digest FOR UPDATE;
  END IF;
  IF p_who IS NULL AND p_teller AND p_state = 'completed' AND NOT p_for_all AND NOT p_next_round THEN
    -- Nearly every settle: the only attempt of this key completes it, and its caller gets the answer. The statement below
    -- does the same; each expression in it costs the server more than the value it writes.
    UPDATE samekey_records SET
      state = 'completed', version = version + 1, changed_at = wall, settled_by = p_by, settled_at = wall,
      retain_until = wall + p_retain, result = p_result, error = p_error, payload = NULL,
      notes = coalesce(p_notes, notes),
      terms = CASE WHEN p_terms IS NULL THEN terms ELSE samekey_with_terms(terms, p_terms) END,
      waited_for = CASE WHEN waited_for = token THEN samekey_ring(digest) END
    WHERE digest = p_digest
      AND token = p_seen_token
      AND attempt = p_seen_attempt
      AND state = 'started'
      AND moves IS NULL            -- it was never taken or in doubt: no asker, and no inquiry
    RETURNING version INTO became;
    IF became = p_seen_version + 1 THEN
      r.digest := p_digest;
      r.token := p_seen_token;
      r.changed_at := wall;
      RETURN r;
    ELSIF became IS NOT NULL THEN
      SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
      RETURN r;
    END IF;
  END IF;
  UPDATE samekey_records SET
    state = p_state,
    version = version + 1,
    changed_at = wall,
    unsure = unsure AND NOT p_for_all,
    round = CASE WHEN p_next_round THEN round + 1 ELSE round END,
    settled_by = CASE WHEN p_retain IS NULL THEN settled_by ELSE p_by END,
    settled_at = CASE WHEN p_retain IS NULL THEN settled_at ELSE wall END,
    retain_until = wall
      + CASE WHEN done AND NOT (p_teller AND state = 'started') THEN greatest(p_retain, 2592000) ELSE p_retain END,
    inquiry = CASE WHEN done AND p_teller AND state = 'started' THEN NULL
      ELSE samekey_inquired(inquiry, p_state, p_teller, p_answered, p_error, wall) END,
    result = p_result,
    error = p_error,
    payload = CASE WHEN p_retain IS NULL OR p_state = 'released' THEN payload END,
    notes = coalesce(p_notes, notes),
    terms = CASE WHEN p_terms IS NULL THEN terms ELSE samekey_with_terms(terms, p_terms) END,
    asker = NULL,
    ask_until = NULL,
    waited_for = CASE WHEN waited_for = token THEN samekey_ring(digest) END,
    moves = CASE
      WHEN moves IS NULL AND p_who IS NULL AND state = 'started' THEN NULL
      ELSE samekey_moved(
        moves, created_at, token, attempt, state, settled_at, error, wall, token, p_state, p_by, p_error, p_who, p_why)
    END
  WHERE digest = p_digest
    AND token = p_seen_token       -- no attempt took it since the caller read it
    AND attempt = p_seen_attempt   -- and the number was not drawn again after a failover
    AND strpos(p_from, state) > 0  -- no name of a state is part of another
    AND NOT (p_spares_live AND lease_until > wall)  -- where the update had to wait, this clock is late: it spares more
  RETURNING version INTO became;
  IF became = p_seen_version + 1 THEN
    r.digest := p_digest;
    r.token := p_seen_token;
    r.changed_at := wall;
    RETURN r;
  END IF;
  IF became IS NULL AND p_or_fail THEN
    RAISE EXCEPTION 'the record that was claimed is not here' USING ERRCODE = 'SK002';
  END IF;
  SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  IF became IS NOT NULL AND p_operator_why IS NOT NULL THEN
    INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
    VALUES (wall, p_by, 'resolve', r.operation, r.tenant, r.key, was, p_state, p_operator_why);
  END IF;
  RETURN r;
END
$$;


-- Many settles as one transaction; not for operators, whose actions are audited one by one. It replies as samekey_open_many does.
CREATE FUNCTION samekey_settle_many(
  p_digests uuid[], p_seen_tokens bigint[], p_seen_attempts uuid[], p_froms text[], p_spares_lives boolean[],
  p_for_alls boolean[], p_states text[], p_bys text[], p_results bytea[], p_errors text[], p_whos text[],
  p_whys text[], p_retains double precision[], p_next_rounds boolean[], p_operator_whys text[],
  p_seen_versions integer[], p_notes bytea[], p_terms text[], p_tellers boolean[], p_answereds boolean[]
) RETURNS TABLE (
  shown samekey_records, told_digests uuid[], told_tokens bigint[], told_at double precision
) LANGUAGE plpgsql AS $$
DECLARE
  wall double precision := date_part('epoch', clock_timestamp());
  told integer;
BEGIN
  WITH moved AS (
    UPDATE samekey_records r SET
      state = s.state,
      version = r.version + 1,
      changed_at = wall,
      unsure = r.unsure AND NOT s.for_all,
      round = CASE WHEN s.next_round THEN r.round + 1 ELSE r.round END,
      settled_by = CASE WHEN s.retain IS NULL THEN r.settled_by ELSE s.by END,
      settled_at = CASE WHEN s.retain IS NULL THEN r.settled_at ELSE wall END,
      retain_until = wall + CASE
        WHEN s.state = 'completed' AND NOT (s.teller AND r.state = 'started') THEN greatest(s.retain, 2592000)
        ELSE s.retain
      END,
      inquiry = CASE WHEN s.state = 'completed' AND s.teller AND r.state = 'started' THEN NULL
        ELSE samekey_inquired(r.inquiry, s.state, s.teller, s.answered, s.error, wall) END,
      result = s.result,
      error = s.error,
      payload = CASE WHEN s.retain IS NULL OR s.state = 'released' THEN r.payload END,
      notes = coalesce(s.notes, r.notes),
      terms = CASE WHEN s.terms IS NULL THEN r.terms ELSE samekey_with_terms(r.terms, s.terms) END,
      asker = NULL,
      ask_until = NULL,
      waited_for = CASE WHEN r.waited_for = r.token THEN samekey_ring(r.digest) END,
      moves = CASE
        WHEN r.moves IS NULL AND s.who IS NULL AND r.state = 'started' THEN NULL
        ELSE samekey_moved(
          r.moves, r.created_at, r.token, r.attempt, r.state, r.settled_at, r.error, wall, r.token, s.state, s.by,
          s.error, s.who, s.why)
      END
    FROM unnest(
      p_digests, p_seen_tokens, p_seen_attempts, p_froms, p_spares_lives, p_for_alls, p_states, p_bys, p_results,
      p_errors, p_whos, p_whys, p_retains, p_next_rounds, p_seen_versions, p_notes, p_terms, p_tellers, p_answereds
    ) AS s (
      digest, token, attempt, froms, spares_live, for_all, state, by, result, error, who, why, retain, next_round,
      seen_version, notes, terms, teller, answered
    )
    WHERE r.digest = s.digest
      AND r.token = s.token
      AND r.attempt = s.attempt
      AND strpos(s.froms, r.state) > 0
      AND NOT (s.spares_live AND r.lease_until > wall)
    RETURNING r.digest, r.token, r.version = s.seen_version + 1 AS as_seen
  )
  SELECT count(*), array_agg(digest), array_agg(token) INTO told, told_digests, told_tokens FROM moved WHERE as_seen;
  told_at := wall;
  RETURN NEXT;
  IF told < cardinality(p_digests) THEN
    -- Refused, or written to since the client's read: the records as they are now.
    RETURN QUERY
      SELECT known, NULL::uuid[], NULL::bigint[], NULL::double precision FROM samekey_records known
      WHERE digest = ANY (p_digests);
  END IF;
END
$$;


CREATE FUNCTION samekey_ask(
  p_digest uuid, p_seen_token bigint, p_seen_attempt uuid, p_asker text, p_lease double precision,
  p_look double precision, p_verdict text, p_parked text
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
BEGIN
  UPDATE samekey_records SET
    asker = CASE WHEN p_lease <> 0 THEN p_asker END,
    ask_until = CASE WHEN p_lease <> 0 THEN wall + p_lease END,
    inquiry = CASE WHEN p_lease <> 0 OR p_look IS NULL THEN inquiry
      ELSE (coalesce(inquiry, '{}') - 'verdict' - 'parked')
        || jsonb_build_object('look_at', wall + p_look, 'looks', coalesce((inquiry ->> 'looks')::integer, 0) + 1)
        || CASE WHEN p_verdict <> '' THEN jsonb_build_object('verdict', p_verdict) ELSE '{}' END
        || CASE WHEN p_parked <> '' THEN jsonb_build_object('parked', p_parked) ELSE '{}' END
      END,
    waited_for = CASE WHEN waited_for = token THEN samekey_ring(digest) END,
    version = version + 1,
    changed_at = wall
  WHERE digest = p_digest
    AND token = p_seen_token
    AND attempt = p_seen_attempt
    AND state = 'in_doubt'
    AND (asker IS NULL OR asker = p_asker OR ask_until <= date_part('epoch', clock_timestamp()))
    -- Only the asker ends its asking; where there is none, the end of a look may be written.
    AND (p_lease <> 0 OR p_look IS NOT NULL OR asker IS NOT DISTINCT FROM p_asker)
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


CREATE FUNCTION samekey_deliver(p_digest uuid, p_seen_token bigint, p_seen_attempt uuid)
RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
BEGIN
  UPDATE samekey_records SET
    inquiry = inquiry || '{"late": "delivered"}',
    version = version + 1,
    changed_at = date_part('epoch', clock_timestamp())
  WHERE digest = p_digest
    AND token = p_seen_token
    AND attempt = p_seen_attempt
    AND inquiry ->> 'late' = 'due'
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


CREATE FUNCTION samekey_testify(
  p_digest uuid, p_operation text, p_tenant text, p_key text, p_attempt text, p_token bigint, p_state text,
  p_result text, p_why text
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
BEGIN
  UPDATE samekey_records SET
    evidence = coalesce(evidence, '[]')
      || jsonb_build_array(jsonb_build_array(wall, p_token, p_attempt, p_state, p_result, p_why)),
    happened = happened OR p_state = 'completed',
    -- A closed record is not rewritten, so this evidence is the late truth itself.
    inquiry = CASE WHEN state = 'closed' AND p_state = 'completed' AND inquiry ->> 'late' IS NULL
      THEN jsonb_build_object('reported_at', wall) || coalesce(inquiry, '{}') || '{"reported": "failed", "late": "due"}'
      ELSE inquiry END,
    retain_until = CASE WHEN state = 'closed' AND p_state = 'completed' AND inquiry ->> 'late' IS NULL
      THEN greatest(retain_until, wall + 2592000) ELSE retain_until END,
    version = version + 1,
    changed_at = wall
  WHERE digest = p_digest
    AND operation = p_operation    -- evidence has no fence: at least it must be about this very key
    AND tenant IS NOT DISTINCT FROM p_tenant
    AND key = p_key
    AND NOT (settled_by IS NOT DISTINCT FROM p_attempt AND state = p_state)  -- the record shows this already
    AND NOT EXISTS (SELECT FROM jsonb_array_elements(evidence) said WHERE said ->> 2 = p_attempt)
    AND coalesce(jsonb_array_length(evidence), 0) < 64  -- the first ones are never replaced
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


CREATE FUNCTION samekey_redact(
  p_digest uuid, p_seen_token bigint, p_seen_attempt uuid, p_by text, p_why text, p_who text, p_move_why text
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
  wall double precision := date_part('epoch', clock_timestamp());
BEGIN
  UPDATE samekey_records SET
    result = NULL,
    payload = NULL,
    error = 'the result was redacted',
    evidence = (
      SELECT jsonb_agg(jsonb_set(said, '{4}', 'null') ORDER BY number)
      FROM jsonb_array_elements(evidence) WITH ORDINALITY AS words (said, number)
    ),
    version = version + 1,
    changed_at = wall,
    moves = samekey_moved(
      moves, created_at, token, attempt, state, settled_at, error, wall, token, state, NULL, NULL, p_who, p_move_why)
  WHERE digest = p_digest
    AND token = p_seen_token
    AND attempt = p_seen_attempt
    AND state IN ('completed', 'closed')
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
    RETURN r;
  END IF;
  INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
  VALUES (wall, p_by, 'redact', r.operation, r.tenant, r.key, r.state, r.state, p_why);
  RETURN r;
END
$$;


CREATE FUNCTION samekey_free(
  p_digest uuid, p_seen_token bigint, p_seen_attempt uuid, p_seen_version integer, p_by text, p_why text
) RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
BEGIN
  DELETE FROM samekey_records
  WHERE digest = p_digest
    AND token = p_seen_token
    AND attempt = p_seen_attempt
    AND version = p_seen_version  -- no evidence was written since the operator looked
    AND state IN ('completed', 'closed', 'released')  -- started and in_doubt: resolve first
  RETURNING * INTO r;
  IF NOT FOUND THEN
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
    RETURN r;
  END IF;
  INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
  VALUES (date_part('epoch', clock_timestamp()), p_by, 'free', r.operation, r.tenant, r.key, r.state, '', p_why);
  RETURN NULL;
END
$$;


-- A caller waits for the end of this hold, or of this asking: flag it if it still goes on, and return the record.
-- The flag and the settle write the same row: the second of them sees the first, so no wake-up is lost.
CREATE FUNCTION samekey_watch(p_digest uuid, p_seen_token bigint)
RETURNS samekey_records LANGUAGE plpgsql AS $$
DECLARE
  r samekey_records;
BEGIN
  SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  IF r.token = p_seen_token AND r.state IN ('started', 'in_doubt') AND r.waited_for IS DISTINCT FROM p_seen_token THEN
    PERFORM set_config('synchronous_commit', 'off', true);  -- a lost flag costs one slow re-read
    PERFORM set_config('lock_timeout', '100', true);        -- a settle commits in milliseconds; for a longer one
    BEGIN                                                   -- the waiter reads again instead
      UPDATE samekey_records SET waited_for = p_seen_token
      WHERE digest = p_digest
        AND token = p_seen_token
        AND state IN ('started', 'in_doubt');
    EXCEPTION WHEN lock_not_available THEN
      NULL;
    END;
    SELECT * INTO r FROM samekey_records WHERE digest = p_digest;
  END IF;
  RETURN r;
END
$$;


-- Paced deletes: rows that are being written are left for the next sweep. One by one: as a join the planner may read
-- the whole table for each of them, and in partitions it did.
CREATE FUNCTION samekey_sweep(p_limit integer) RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_sort = off  -- by the index, however large the table is
AS $$
DECLARE
  wall double precision := date_part('epoch', clock_timestamp());
  past record;
  swept integer := 0;
BEGIN
  FOR past IN
    SELECT digest, token, attempt FROM samekey_records
    WHERE retain_until <= wall AND (state <> 'started' OR lease_until <= wall) ORDER BY retain_until LIMIT p_limit
    FOR UPDATE SKIP LOCKED
  LOOP
    DELETE FROM samekey_records
    WHERE digest = past.digest
      AND token = past.token      -- checked again by the delete: the key may have been made anew
      AND attempt = past.attempt
      AND retain_until <= wall
      AND (state IN ('completed', 'closed', 'released')
        OR state = 'started' AND lease_until <= wall AND split_part(boundary, ' ', 1) = 'repeatable');
    IF FOUND THEN
      swept := swept + 1;
    END IF;
  END LOOP;
  RETURN swept;
END
$$;


-- Notes the incarnation of the data. When it is another one than before, records may be missing: returns since when.
-- It is kept in the table, so that a process that starts after the failover reads it too. p_before is the incarnation
-- that this client knew: where the tables were made anew, only the clients remember that there were others.
CREATE FUNCTION samekey_greet(p_incarnation text, p_before text) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
  known text;
BEGIN
  SELECT value INTO known FROM samekey_meta WHERE name = 'incarnation';
  IF known IS NULL THEN
    INSERT INTO samekey_meta (name, value) VALUES ('incarnation', p_incarnation) ON CONFLICT (name) DO NOTHING;
  ELSIF known <> p_incarnation THEN
    UPDATE samekey_meta SET value = p_incarnation WHERE name = 'incarnation' AND value = known;
    IF FOUND THEN
      INSERT INTO samekey_meta (name, value) VALUES ('lost_at', date_part('epoch', clock_timestamp())::text)
      ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
  END IF;
  IF p_before <> p_incarnation THEN  -- noted by another client already, or never: then since these tables exist
    INSERT INTO samekey_meta (name, value) SELECT 'lost_at', value FROM samekey_meta WHERE name = 'born'
    ON CONFLICT (name) DO NOTHING;
  END IF;
  RETURN (SELECT value::double precision FROM samekey_meta WHERE name = 'lost_at');
END
$$;

INSERT INTO samekey_meta (name, value) VALUES
  ('epoch', gen_random_uuid()::text),  -- tables that were dropped and made again are another incarnation
  ('born', date_part('epoch', clock_timestamp())::text),
  ('schema', '1'),
  ('oldest_client', '1');              -- the oldest schema whose code still works with this one
