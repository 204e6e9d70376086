-- +goose Up

-- Whether a node is silent at a time: the rule of lifecycle.Silent, with the limit in seconds.
CREATE FUNCTION node_silent(state text, state_since timestamptz, last_heartbeat_at timestamptz, at timestamptz, seconds double precision)
    RETURNS boolean LANGUAGE sql STABLE
    RETURN state IN ('active', 'offline', 'quarantined', 'draining', 'drained', 'retired')
        AND coalesce(CASE state WHEN 'active' THEN greatest(last_heartbeat_at, state_since)
                                WHEN 'offline' THEN coalesce(last_heartbeat_at, state_since) ELSE last_heartbeat_at END
                     < at - make_interval(secs => seconds), false);

-- +goose Down
DROP FUNCTION node_silent;
