-- +goose Up

-- Files with parts of the audit trail. Each file has the checkpoints after those of the file
-- before, and the events that they cover. Only audit_archive writes here.
CREATE TABLE audit_archives (
    last_checkpoint  bigint CONSTRAINT audit_archives_pkey PRIMARY KEY,
    -- Unique, so the files form a chain.
    after_checkpoint bigint NOT NULL CONSTRAINT audit_archives_after_key UNIQUE,
    file             text   NOT NULL,
    sha256           text   NOT NULL CONSTRAINT audit_archives_sha_check CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    events           bigint NOT NULL,
    archived_at      timestamptz NOT NULL DEFAULT now()
);

-- The last event of each stream in each file. Events are deleted up to one of these, so what
-- is left of a stream continues an event that a signed checkpoint names. Rows before the last
-- deleted event are gone.
CREATE TABLE audit_archived_heads (
    stream          text   NOT NULL,
    seq             bigint NOT NULL,
    hash            text   NOT NULL,
    last_checkpoint bigint NOT NULL CONSTRAINT audit_archived_heads_archive_fkey REFERENCES audit_archives (last_checkpoint),
    CONSTRAINT audit_archived_heads_pkey PRIMARY KEY (stream, seq)
);

-- When old records were last deleted completely. One row.
CREATE TABLE retention_runs (
    only_row     boolean     NOT NULL DEFAULT true CONSTRAINT retention_runs_pkey PRIMARY KEY
                             CONSTRAINT retention_runs_only_row_check CHECK (only_row),
    succeeded_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO retention_runs DEFAULT VALUES;

-- Only audit_cut deletes events. Its setting alone gives no role the privilege.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION audit_events_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'audit_events' AND current_setting('gpuaas.audit_cut', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'audit_events is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd

-- Records a file with the checkpoints after after_checkpoint up to last_checkpoint. False if
-- another file follows after_checkpoint. The file's content is the caller's; that each event
-- which it allows to delete is older than 7 days and is the one that the checkpoint names is
-- checked here. The audit event shows what was archived, also if the caller lied.
-- +goose StatementBegin
CREATE FUNCTION audit_archive(after_checkpoint bigint, last_checkpoint bigint, file text, sha256 text, events bigint)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    wrong text;
BEGIN
    IF after_checkpoint <> coalesce((SELECT max(a.last_checkpoint) FROM audit_archives a), 0)
       OR last_checkpoint <= after_checkpoint
       OR NOT EXISTS (SELECT FROM audit_checkpoints c WHERE c.number = last_checkpoint) THEN
        RETURN false;
    END IF;
    INSERT INTO audit_archives (last_checkpoint, after_checkpoint, file, sha256, events)
        VALUES (last_checkpoint, after_checkpoint, file, sha256, events) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO audit_archived_heads (stream, seq, hash, last_checkpoint)
        SELECT DISTINCT ON (h.stream) h.stream, h.seq, h.hash, last_checkpoint
        FROM audit_checkpoints c
        CROSS JOIN jsonb_to_recordset(convert_from(c.body, 'UTF8')::jsonb -> 'heads') AS h (stream text, seq bigint, hash text)
        WHERE c.number > after_checkpoint AND c.number <= last_checkpoint
        ORDER BY h.stream, h.seq DESC;
    SELECT h.stream INTO wrong FROM audit_archived_heads h LEFT JOIN audit_events e USING (stream, seq)
        WHERE h.last_checkpoint = last_checkpoint AND (e.hash IS DISTINCT FROM h.hash OR e.at > now() - interval '7 days') LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'checkpoint % does not cover events of audit stream % that are older than 7 days', last_checkpoint, wrong;
    END IF;
    PERFORM audit_append('system', 'system', '', 'audit.archived', 'system', 'succeeded', '', '', '', jsonb_build_object('file', file,
        'sha256', sha256, 'events', events::text, 'after_checkpoint', after_checkpoint::text, 'last_checkpoint', last_checkpoint::text));
    RETURN true;
END
$$;
-- +goose StatementEnd

-- Whether the events of a stream up to seq may be deleted: they are archived, the stream
-- continues, no open operation needs them, none is the removal that a signed removal relies on, and
-- the database was not just restored.
CREATE FUNCTION audit_deletable(stream text, seq bigint) RETURNS boolean LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM audit_archived_heads a JOIN audit_heads h ON h.stream = a.stream AND h.seq > a.seq
                   WHERE a.stream = audit_deletable.stream AND a.seq = audit_deletable.seq)
        AND NOT EXISTS (SELECT FROM operations o WHERE o.ended_at IS NULL AND o.node_id::text = audit_deletable.stream)
        AND NOT EXISTS (SELECT FROM restore_modes m WHERE m.ended_at IS NULL AND m.ends_at > now())
        AND NOT EXISTS (SELECT FROM audit_events e WHERE e.stream = audit_deletable.stream AND e.seq <= audit_deletable.seq
                        AND e.action = 'nodes.remove' AND e.result = 'succeeded');

-- Deletes the events of each stream up to its seq if audit_deletable allows it, and returns how many.
-- +goose StatementBegin
CREATE FUNCTION audit_cut(streams text[], seqs bigint[]) RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    deleted bigint;
BEGIN
    PERFORM set_config('gpuaas.audit_cut', 'on', true);
    WITH cut AS MATERIALIZED (
        SELECT c.stream, c.seq FROM unnest(streams, seqs) AS c (stream, seq) WHERE audit_deletable(c.stream, c.seq)
    ), gone AS (
        DELETE FROM audit_events e USING cut WHERE e.stream = cut.stream AND e.seq <= cut.seq RETURNING 1
    ), older AS (
        DELETE FROM audit_archived_heads a USING cut WHERE a.stream = cut.stream AND a.seq < cut.seq
    )
    SELECT count(*) INTO deleted FROM gone;
    PERFORM set_config('gpuaas.audit_cut', '', true);
    RETURN deleted;
END
$$;
-- +goose StatementEnd

-- Deletes up to max_rows tasks that finished before keep_seconds ago, and returns how many. It
-- keeps tasks of an operation that is open or ended since, those with a message for Temporal,
-- and the newest task of each node, whose seq is the node's floor.
-- +goose StatementBegin
CREATE FUNCTION delete_old_tasks(keep_seconds double precision, max_rows bigint) RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    before  timestamptz := now() - greatest(make_interval(secs => keep_seconds), interval '1 day');
    deleted bigint;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT t.task_id FROM node_tasks t
        WHERE t.created_at < before AND t.finished_at < before
          AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = t.operation_id AND (o.ended_at IS NULL OR o.ended_at >= before))
          AND NOT EXISTS (SELECT FROM outbox b WHERE b.task_id = t.task_id)
          AND t.seq < (SELECT max(n.seq) FROM node_tasks n WHERE n.node_id = t.node_id)
          AND NOT EXISTS (SELECT FROM restore_modes m WHERE m.ended_at IS NULL AND m.ends_at > now())
        ORDER BY t.created_at LIMIT max_rows FOR UPDATE SKIP LOCKED
    )
    DELETE FROM node_tasks t USING old WHERE t.task_id = old.task_id;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
-- +goose StatementEnd

-- Deletes up to max_rows certificates, tokens and keys each that ended and expired before
-- keep_seconds ago, and returns how many rows. It keeps what is live, the enrollment tokens of
-- a node's incarnation, the key of each certificate and token that is left, and what was
-- issued after a removal, because no removal may be signed then.
-- +goose StatementBegin
CREATE FUNCTION delete_old_identities(keep_seconds double precision, max_rows bigint) RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    before  timestamptz := now() - greatest(make_interval(secs => keep_seconds), interval '1 day');
    deleted bigint;
    total   bigint := 0;
BEGIN
    IF EXISTS (SELECT FROM restore_modes m WHERE m.ended_at IS NULL AND m.ends_at > now()) THEN
        RETURN 0;
    END IF;
    DELETE FROM node_certificates d USING (
        SELECT c.node_id, c.serial FROM node_certificates c
        WHERE c.slot IN ('retired', 'replaced') AND c.retired_at < before AND c.not_after < before
          AND NOT EXISTS (SELECT FROM operations o WHERE o.node_id = c.node_id AND o.action = 'remove' AND o.ended_at < c.issued_at)
        LIMIT max_rows FOR UPDATE SKIP LOCKED) old
    WHERE d.node_id = old.node_id AND d.serial = old.serial;
    GET DIAGNOSTICS total = ROW_COUNT;

    DELETE FROM enrollment_tokens d USING (
        SELECT t.token_id FROM enrollment_tokens t JOIN nodes n USING (node_id)
        WHERE t.expires_at < before AND coalesce(t.ended_at, t.expires_at) < before
          AND (n.state = 'removed' AND n.state_since < before
               OR t.state IN ('consumed', 'voided') AND (t.purpose IN ('recover', 'fetch') OR t.incarnation < n.incarnation))
          AND NOT EXISTS (SELECT FROM node_certificates c WHERE c.node_id = t.node_id AND (c.token_id = t.token_id OR c.recovery_token_id = t.token_id))
          AND NOT EXISTS (SELECT FROM operations o WHERE o.node_id = t.node_id AND o.action = 'remove' AND o.ended_at < t.claimed_at)
        LIMIT max_rows FOR UPDATE OF t SKIP LOCKED) old
    WHERE d.token_id = old.token_id;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;

    DELETE FROM identity_keys d USING (
        SELECT k.spki FROM identity_keys k
        WHERE k.first_seen < before
          AND NOT EXISTS (SELECT FROM node_certificates c WHERE c.node_id = k.node_id AND (c.spki = k.spki OR c.renewal_spki = k.spki))
          AND NOT EXISTS (SELECT FROM enrollment_tokens t WHERE t.node_id = k.node_id AND t.claimed_spki = k.spki)
        LIMIT max_rows FOR UPDATE SKIP LOCKED) old
    WHERE d.spki = old.spki;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN total + deleted;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION audit_archive(bigint, bigint, text, text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION audit_cut(text[], bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION delete_old_tasks(double precision, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION delete_old_identities(double precision, bigint) FROM PUBLIC;

-- +goose Down
DROP FUNCTION delete_old_identities;
DROP FUNCTION delete_old_tasks;
DROP FUNCTION audit_cut;
DROP FUNCTION audit_deletable;
DROP FUNCTION audit_archive;
DROP TABLE retention_runs;
DROP TABLE audit_archived_heads;
DROP TABLE audit_archives;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION audit_events_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'audit_events is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
