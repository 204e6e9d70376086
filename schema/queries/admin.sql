-- Removes labels, then sets labels.
-- name: SetNodeLabels :exec
UPDATE nodes SET labels = (labels - coalesce(sqlc.arg(remove)::text[], '{}')) || coalesce(nullif(sqlc.arg(labels)::jsonb, 'null'), '{}')
WHERE node_id = sqlc.arg(node_id);

-- name: SetNodeRegistration :exec
UPDATE nodes SET sku = sqlc.arg(sku), gpus_total = sqlc.arg(gpus_total), region_code = sqlc.arg(region_code)
WHERE node_id = sqlc.arg(node_id);

-- Names that a mistyped one may have meant.
-- name: HostsLike :many
SELECT host FROM nodes WHERE lower(host) LIKE sqlc.arg(pattern)::text AND state <> 'removed' ORDER BY host LIMIT 3;

-- The time so many seconds ago, by the database's clock.
-- name: TimeBefore :one
SELECT (clock_timestamp() - make_interval(secs => sqlc.arg(seconds)::float8))::timestamptz AS at;
