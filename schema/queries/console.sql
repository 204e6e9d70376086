-- name: CreateConsoleSession :exec
INSERT INTO console_sessions (id, token_hash, subject, expires_at)
VALUES (sqlc.arg(id), sqlc.arg(token_hash), sqlc.arg(subject), now() + make_interval(secs => sqlc.arg(age_seconds)::float8));

-- Deletes sessions that expired or were not used for long.
-- name: DeleteOldConsoleSessions :exec
DELETE FROM console_sessions WHERE id IN (
    SELECT s.id FROM console_sessions s
    WHERE s.expires_at < now() OR s.last_seen_at < now() - make_interval(secs => sqlc.arg(idle_seconds)::float8) LIMIT 1000);

-- name: GetConsoleSession :one
SELECT token_hash, subject, (last_seen_at < now() - make_interval(secs => sqlc.arg(seen_seconds)::float8))::boolean AS unseen
FROM console_sessions
WHERE id = sqlc.arg(id) AND expires_at > now() AND last_seen_at > now() - make_interval(secs => sqlc.arg(idle_seconds)::float8);

-- name: SeeConsoleSession :exec
UPDATE console_sessions SET last_seen_at = now() WHERE id = sqlc.arg(id);

-- name: DeleteConsoleSession :exec
DELETE FROM console_sessions WHERE id = sqlc.arg(id);
