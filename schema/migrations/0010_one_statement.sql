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

-- Appends an event to its stream's chain and returns its seq. It locks the
-- stream's head until the transaction ends, so it is the last thing that a
-- transaction does. A function and not the program, since seq, time and the hash
-- before are known under that lock only: to bring them to the program and the
-- hash back would be a round trip more with each write.
--
-- The hash is schema.AuditEvent.ComputeHash, which is over the event as Go's
-- encoding/json writes it: keys of detail in the order of their bytes, and five
-- characters escaped that Postgres leaves alone.
-- +goose StatementBegin
CREATE FUNCTION audit_append(stream text, actor text, action text, target text, result text, reason text,
                             correlation_id text, operation_id text, detail jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
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
        || coalesce((SELECT ',"detail":{' || string_agg(to_json(d.key)::text || ':' || to_json(d.value)::text, ','
                                                        ORDER BY d.key COLLATE "C") || '}'
                     FROM jsonb_each_text(detail) d), '')
        || ',"prev_hash":"' || before || '","hash":""}';
    body := replace(replace(replace(replace(replace(body, '<', '\u003c'), '>', '\u003e'), '&', '\u0026'),
                            U&'\2028', '\u2028'), U&'\2029', '\u2029');
    digest := encode(sha256(convert_to(E'gpuaas audit v1\n' || body, 'UTF8')), 'hex');
    UPDATE audit_heads h SET seq = n, hash = digest, at = stamp WHERE h.stream = stream;
    INSERT INTO audit_events (stream, seq, at, actor, action, target, result, reason, correlation_id, operation_id,
                              detail, prev_hash, hash)
    VALUES (stream, n, stamp, actor, action, target, result, reason, correlation_id, operation_id, detail, before, digest);
    RETURN n;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION audit_append;
ALTER TABLE node_tasks DROP COLUMN body_sha256, DROP COLUMN poll_number;
