-- Removes labels, then sets labels.
-- name: SetNodeLabels :exec
UPDATE nodes SET labels = (labels - coalesce(sqlc.arg(remove)::text[], '{}')) || coalesce(nullif(sqlc.arg(labels)::jsonb, 'null'), '{}')
WHERE node_id = sqlc.arg(node_id);

-- name: SetNodeRegistration :exec
UPDATE nodes SET sku = sqlc.arg(sku), gpus_total = sqlc.arg(gpus_total), region_code = sqlc.arg(region_code), workload_driver = sqlc.arg(workload_driver)
WHERE node_id = sqlc.arg(node_id);

-- Names that a mistyped one may have meant.
-- name: HostsLike :many
SELECT host FROM nodes WHERE lower(host) LIKE sqlc.arg(pattern)::text AND state <> 'removed' ORDER BY host LIMIT 3;

-- The time so many seconds ago, by the database's clock.
-- name: TimeBefore :one
SELECT (clock_timestamp() - make_interval(secs => sqlc.arg(seconds)::float8))::timestamptz AS at;

-- The messages to Temporal that were not delivered for longer than after_seconds: how
-- many, the age of the oldest one in seconds, and why its last delivery failed.
-- name: UndeliveredMessages :one
SELECT count(*)::bigint AS messages, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_seconds,
       coalesce((SELECT o.last_error FROM outbox o WHERE o.orphaned_at IS NULL ORDER BY o.created_at LIMIT 1), '')::text AS last_error
FROM outbox WHERE orphaned_at IS NULL AND created_at < now() - make_interval(secs => sqlc.arg(after_seconds)::float8);
