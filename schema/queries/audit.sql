-- Locks the head of the stream until the end of the transaction.
-- name: AppendAudit :exec
SELECT audit_append(sqlc.arg(stream), sqlc.arg(actor), sqlc.arg(via), sqlc.arg(action), sqlc.arg(target), sqlc.arg(result),
                    sqlc.arg(reason), sqlc.arg(correlation_id), sqlc.arg(operation_id), sqlc.arg(detail));

-- name: ListAuditStreams :many
SELECT stream FROM audit_heads WHERE seq > 0 AND stream > sqlc.arg(after) ORDER BY stream LIMIT sqlc.arg(row_limit)::bigint;
