-- Stores a session of the console, and keeps only the last used ones of its token.
-- name: CreateConsoleSession :exec
WITH surplus AS (DELETE FROM console_sessions WHERE id IN (SELECT s.id FROM console_sessions s WHERE s.token_hash = sqlc.arg(token_hash)
    ORDER BY s.last_seen_at DESC, s.id OFFSET sqlc.arg(keep)::bigint - 1))
INSERT INTO console_sessions (id, token_hash, subject, expires_at)
VALUES (sqlc.arg(id), sqlc.arg(token_hash), sqlc.arg(subject), now() + make_interval(secs => sqlc.arg(age_seconds)::float8));

-- unseen is true if the last recorded use is longer ago than seen_every_seconds.
-- name: FindConsoleSession :one
SELECT token_hash, subject, (last_seen_at < now() - make_interval(secs => sqlc.arg(seen_every_seconds)::float8))::boolean AS unseen
FROM console_sessions
WHERE id = sqlc.arg(id) AND expires_at > now() AND last_seen_at > now() - make_interval(secs => sqlc.arg(idle_seconds)::float8);

-- name: SeeConsoleSession :exec
UPDATE console_sessions SET last_seen_at = now() WHERE id = $1;

-- name: DeleteConsoleSession :exec
DELETE FROM console_sessions WHERE id = $1;

-- Deletes sessions that ended by their age, or because they were not used, more than keep_seconds ago.
-- name: DeleteOldConsoleSessions :execrows
DELETE FROM console_sessions WHERE id IN (
    SELECT s.id FROM console_sessions s
    WHERE least(s.expires_at, s.last_seen_at + make_interval(secs => sqlc.arg(idle_seconds)::float8)) < now() - make_interval(secs => sqlc.arg(keep_seconds)::float8)
    LIMIT sqlc.arg(max_rows)::bigint);

-- Lets one transaction at a time record the stop of a bulk run.
-- name: LockBulkStop :exec
SELECT pg_advisory_xact_lock(hashtextextended('gpuaas.bulk.stop ' || sqlc.arg(run_id)::text, 0));

-- Reports whether the stop of a bulk run is in the audit already: a record whose commit got no response is
-- repeated within minutes.
-- name: BulkStopNoted :one
SELECT EXISTS (SELECT 1 FROM audit_events WHERE stream = sqlc.arg(stream) AND at > now() - interval '1 day'
               AND action = sqlc.arg(action) AND target = sqlc.arg(run_id))::boolean;
