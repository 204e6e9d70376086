-- The lock of one stream's chain, and the time by the database's clock.
-- name: LockAuditHead :one
SELECT seq, hash, greatest(at, clock_timestamp())::timestamptz AS at FROM audit_heads WHERE stream = $1 FOR UPDATE;

-- name: InsertAuditHead :exec
INSERT INTO audit_heads (stream) VALUES ($1) ON CONFLICT ON CONSTRAINT audit_heads_pkey DO NOTHING;

-- name: AppendAudit :exec
WITH head AS (
    UPDATE audit_heads SET seq = sqlc.arg(seq), hash = sqlc.arg(hash), at = sqlc.arg(at) WHERE stream = sqlc.arg(stream)
)
INSERT INTO audit_events (stream, seq, at, actor, action, target, result, reason, correlation_id, operation_id,
                          detail, prev_hash, hash)
VALUES (sqlc.arg(stream), sqlc.arg(seq), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(action), sqlc.arg(target),
        sqlc.arg(result), sqlc.arg(reason), sqlc.arg(correlation_id), sqlc.arg(operation_id),
        sqlc.arg(detail), sqlc.arg(prev_hash), sqlc.arg(hash));

-- name: ListAudit :many
SELECT * FROM audit_events WHERE stream = $1 AND seq > $2 ORDER BY seq LIMIT $3;

-- name: ListAuditStreams :many
SELECT stream FROM audit_heads WHERE seq > 0 ORDER BY stream;
