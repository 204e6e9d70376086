-- +goose Up

-- The end of each audit stream. Its row is the lock of the stream's chain, so
-- that writes for different nodes never wait for each other.
CREATE TABLE audit_heads (
    stream text        CONSTRAINT audit_heads_pkey PRIMARY KEY,
    seq    bigint      NOT NULL DEFAULT 0,
    hash   text        NOT NULL DEFAULT '',
    at     timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50);

-- The audit trail: one hash chain per stream (schema.AuditEvent.ComputeHash).
CREATE TABLE audit_events (
    stream         text        NOT NULL,
    seq            bigint      NOT NULL CONSTRAINT audit_events_seq_check CHECK (seq >= 1),
    at             timestamptz NOT NULL,
    actor          text        NOT NULL,
    action         text        NOT NULL,
    target         text        NOT NULL,
    result         text        NOT NULL CONSTRAINT audit_events_result_check CHECK (result IN (
                       'accepted', 'succeeded', 'refused', 'failed', 'cancelled', 'parked')),
    reason         text        NOT NULL DEFAULT '',
    correlation_id text        NOT NULL DEFAULT '',
    operation_id   text        NOT NULL DEFAULT '',
    detail         jsonb,
    prev_hash      text        NOT NULL,
    hash           text        NOT NULL,

    CONSTRAINT audit_events_pkey PRIMARY KEY (stream, seq),
    CONSTRAINT audit_events_stream_fkey FOREIGN KEY (stream) REFERENCES audit_heads (stream)
);

-- A mistake or an intruder with the application's connection cannot edit the
-- past unnoticed: the chain shows it, and this trigger refuses it outright.
-- +goose StatementBegin
CREATE FUNCTION audit_events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_events is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER audit_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();

-- +goose Down
DROP TABLE audit_events;
DROP FUNCTION audit_events_append_only();
DROP TABLE audit_heads;
