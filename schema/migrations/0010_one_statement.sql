-- +goose Up

-- What lets a hand-over and a result each be one statement, and a hand-over
-- whose answer was lost be made again at once.
ALTER TABLE node_tasks
    -- Which poll of its holder the newest lease answered, by the holder's own
    -- count; 0 when it does not count.
    ADD COLUMN poll_number bigint NOT NULL DEFAULT 0,
    -- The hex SHA-256 of the envelope's signed body; '' when the envelope must be
    -- read for it.
    ADD COLUMN body_sha256 text NOT NULL DEFAULT '';

-- A task that was given up is not over: only what is over has finished_at. So the
-- index of what is not over has no column that a hand-over changes, and a hand-over
-- rewrites the row in place. The reclaimer reads the same index whole, as it must.
ALTER TABLE node_tasks ADD COLUMN lost_at timestamptz, DROP CONSTRAINT node_tasks_finished_check;
UPDATE node_tasks SET lost_at = finished_at, finished_at = NULL WHERE status = 'lost';
ALTER TABLE node_tasks ADD CONSTRAINT node_tasks_finished_check
    CHECK ((finished_at IS NOT NULL) = (status IN ('succeeded', 'failed', 'cancelled')));
DROP INDEX node_tasks_unended_idx;
DROP INDEX node_tasks_open_idx;
CREATE INDEX node_tasks_open_idx ON node_tasks (node_id, seq) WHERE finished_at IS NULL;

-- An event's head is there because audit_append makes it, and stays because of
-- this trigger: to check that with each event cost as much as to store it.
ALTER TABLE audit_events DROP CONSTRAINT audit_events_stream_fkey;
CREATE TRIGGER audit_heads_stay BEFORE DELETE OR TRUNCATE ON audit_heads
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();

-- Appends an event to its stream's chain and returns its seq. It locks the
-- stream's head until the transaction ends, so it is the last thing that a
-- transaction does. A function and not the program, since seq, time and the hash
-- before are known under that lock only: to bring them to the program and the
-- hash back would be a round trip more with each write.
--
-- The hash is schema.AuditEvent.ComputeHash, which is over the event as Go's
-- encoding/json writes it: detail is an object with its keys in the order of their
-- bytes, or '', and five characters are escaped that Postgres leaves alone.
-- +goose StatementBegin
CREATE FUNCTION audit_append(stream text, actor text, action text, target text, result text, reason text,
                             correlation_id text, operation_id text, detail text) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    n      bigint;
    stamp  timestamptz;
    before text;
    body   text;
    digest text;
BEGIN
    LOOP
        SELECT h.seq + 1, h.hash, greatest(h.at, clock_timestamp()) INTO n, before, stamp
        FROM audit_heads h WHERE h.stream = stream FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO audit_heads (stream) VALUES (stream) ON CONFLICT DO NOTHING;
    END LOOP;
    body := '{"stream":' || to_json(stream)::text || ',"seq":' || n
        || ',"at":"' || rtrim(rtrim(to_char(stamp AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
        || 'Z","actor":' || to_json(actor)::text || ',"action":' || to_json(action)::text
        || ',"target":' || to_json(target)::text || ',"result":' || to_json(result)::text
        || CASE WHEN reason = '' THEN '' ELSE ',"reason":' || to_json(reason)::text END
        || CASE WHEN correlation_id = '' THEN '' ELSE ',"correlation_id":' || to_json(correlation_id)::text END
        || CASE WHEN operation_id = '' THEN '' ELSE ',"operation_id":' || to_json(operation_id)::text END
        || CASE WHEN detail = '' THEN '' ELSE ',"detail":' || detail END
        || ',"prev_hash":"' || before || '","hash":""}';
    body := replace(replace(replace(replace(replace(body, '<', '\u003c'), '>', '\u003e'), '&', '\u0026'),
                            U&'\2028', '\u2028'), U&'\2029', '\u2029');
    digest := encode(sha256(convert_to(E'gpuaas audit v1\n' || body, 'UTF8')), 'hex');
    UPDATE audit_heads h SET seq = n, hash = digest, at = stamp WHERE h.stream = stream;
    INSERT INTO audit_events (stream, seq, at, actor, action, target, result, reason, correlation_id, operation_id,
                              detail, prev_hash, hash)
    VALUES (stream, n, stamp, actor, action, target, result, reason, correlation_id, operation_id,
            nullif(detail, '')::jsonb, before, digest);
    RETURN n;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION audit_append;
DROP TRIGGER audit_heads_stay ON audit_heads;
ALTER TABLE audit_events ADD CONSTRAINT audit_events_stream_fkey FOREIGN KEY (stream) REFERENCES audit_heads (stream);
DROP INDEX node_tasks_open_idx;
CREATE INDEX node_tasks_open_idx ON node_tasks (node_id, seq) WHERE status IN ('pending', 'dispatched', 'running');
CREATE INDEX node_tasks_unended_idx ON node_tasks (task_id) WHERE status IN ('pending', 'dispatched', 'running', 'lost');
ALTER TABLE node_tasks DROP CONSTRAINT node_tasks_finished_check;
UPDATE node_tasks SET finished_at = coalesce(lost_at, now()) WHERE status = 'lost';
ALTER TABLE node_tasks ADD CONSTRAINT node_tasks_finished_check
    CHECK ((finished_at IS NOT NULL) = (status IN ('succeeded', 'failed', 'cancelled', 'lost')));
ALTER TABLE node_tasks DROP COLUMN lost_at, DROP COLUMN body_sha256, DROP COLUMN poll_number;
