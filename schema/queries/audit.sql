-- Locks the head of the stream until the end of the transaction.
-- name: AppendAudit :exec
SELECT audit_append(sqlc.arg(stream), sqlc.arg(actor), sqlc.arg(via), sqlc.arg(action), sqlc.arg(target), sqlc.arg(result),
                    sqlc.arg(reason), sqlc.arg(correlation_id), sqlc.arg(operation_id), sqlc.arg(detail));

-- Reports whether the park of an operation is in the audit already. The caller holds the
-- lock of the operation's node, whose stream it is.
-- name: ParkNoted :one
SELECT EXISTS (SELECT 1 FROM audit_events WHERE stream = sqlc.arg(stream) AND result = 'parked'
               AND operation_id = sqlc.arg(operation_id) AND detail ->> 'park_id' = sqlc.arg(park_id)::text)::boolean;

-- name: ListAuditStreams :many
SELECT stream FROM audit_heads WHERE seq > 0 AND stream > sqlc.arg(after) ORDER BY stream LIMIT sqlc.arg(row_limit)::bigint;

-- Reports whether the decision about an operation is in the audit already. The caller
-- holds the lock of the operation's node, whose stream it is.
-- name: DecisionNoted :one
SELECT EXISTS (SELECT 1 FROM audit_events WHERE stream = sqlc.arg(stream) AND action = 'operations.resolve'
               AND operation_id = sqlc.arg(operation_id) AND detail ->> 'decision_id' = sqlc.arg(decision_id)::text)::boolean;
