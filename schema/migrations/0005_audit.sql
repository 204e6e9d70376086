-- +goose Up

-- The end of each audit stream. Its row is the lock of the stream's chain, so
-- writes for different nodes do not block each other.
CREATE TABLE audit_heads (
    stream text        CONSTRAINT audit_heads_pkey PRIMARY KEY,
    seq    bigint      NOT NULL DEFAULT 0,
    hash   text        NOT NULL DEFAULT '',
    prev_hash text     NOT NULL DEFAULT '',
    at     timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50);

-- A domain, because the check constraints of a table are parsed again for every insert.
CREATE DOMAIN audit_result AS text CONSTRAINT audit_events_result_check CHECK (VALUE IN (
    'accepted', 'succeeded', 'refused', 'failed', 'cancelled', 'parked'));

-- The audit trail: one hash chain per stream. The events have no foreign key to
-- their head: audit_append creates the head and a trigger keeps it, and the check
-- doubled the cost of an insert.
CREATE TABLE audit_events (
    stream         text        NOT NULL,
    seq            bigint      NOT NULL, -- from 1
    at             timestamptz NOT NULL,
    actor          text        NOT NULL,
    via            text        NOT NULL DEFAULT '',
    action         text        NOT NULL,
    target         text        NOT NULL,
    result         audit_result NOT NULL,
    reason         text        NOT NULL DEFAULT '',
    correlation_id text        NOT NULL DEFAULT '',
    operation_id   text        NOT NULL DEFAULT '',
    detail         jsonb       NOT NULL DEFAULT '{}',
    prev_hash      text        NOT NULL,
    hash           text        NOT NULL,

    CONSTRAINT audit_events_pkey PRIMARY KEY (stream, seq)
);

-- The order of the list of all streams.
CREATE INDEX audit_events_page_idx ON audit_events (at, stream, seq);
-- The order of the list of one stream.
CREATE INDEX audit_events_stream_page_idx ON audit_events (stream, at, seq);

-- The chain reveals an edit of the past; these triggers refuse it.
-- +goose StatementBegin
CREATE FUNCTION audit_events_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'audit_events is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER audit_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();
CREATE TRIGGER audit_heads_stay BEFORE DELETE OR TRUNCATE ON audit_heads
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();

-- One field of the hash's preimage: its length in bytes, a colon, the bytes. The
-- cast matters: without it the expression is only stable, the planner cannot inline
-- the function, and every call parses and plans it again.
CREATE FUNCTION audit_field(field text) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN octet_length(field)::text || ':' || field;

-- audit_append is the only writer of audit_events: it appends an event to its
-- stream's chain and returns the event's seq. The package comment of schema/audit
-- specifies the hash. The function runs in the database because seq, time and
-- previous hash are known only under the lock of the stream's head; a client would
-- need a second round trip. The lock lasts until the end of the transaction, so
-- this is a transaction's last statement. The arguments of audit_field are columns
-- and variables, because it is not inlined over a subquery.
-- +goose StatementBegin
CREATE FUNCTION audit_append(stream text, actor text, via text, action text, target text, result text, reason text,
                             correlation_id text, operation_id text, detail jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    written_at timestamptz := clock_timestamp();
    next_seq   bigint;
BEGIN
    LOOP
        WITH head AS (
            UPDATE audit_heads h SET seq = h.seq + 1, at = greatest(h.at, written_at), prev_hash = h.hash,
                hash = encode(sha256(convert_to(
                    audit_field('gpuaas audit v1') || audit_field(stream) || audit_field((h.seq + 1)::text)
                    || audit_field((extract(epoch FROM greatest(h.at, written_at)) * 1000000)::bigint::text)
                    || audit_field(actor) || audit_field(via) || audit_field(action) || audit_field(target)
                    || audit_field(result) || audit_field(reason) || audit_field(correlation_id) || audit_field(operation_id)
                    || audit_field(details.fields) || audit_field(h.hash), 'UTF8')), 'hex')
            FROM (SELECT coalesce(string_agg(audit_field(d.key) || audit_field(d.value), '' ORDER BY d.key COLLATE "C"), '') AS fields
                  FROM jsonb_each_text(detail) d) details
            WHERE h.stream = stream
            RETURNING h.seq, h.at, h.prev_hash, h.hash
        )
        INSERT INTO audit_events (stream, seq, at, actor, via, action, target, result, reason, correlation_id, operation_id,
                                  detail, prev_hash, hash)
        SELECT stream, head.seq, head.at, actor, via, action, target, result, reason, correlation_id, operation_id,
               detail, head.prev_hash, head.hash
        FROM head RETURNING audit_events.seq INTO next_seq;
        IF FOUND THEN
            RETURN next_seq;
        END IF;
        INSERT INTO audit_heads (stream) VALUES (stream) ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION audit_append;
DROP FUNCTION audit_field;
DROP TABLE audit_events;
DROP DOMAIN audit_result;
DROP FUNCTION audit_events_append_only();
DROP TABLE audit_heads;
