-- Removes labels, then sets labels.
-- name: SetNodeLabels :exec
UPDATE nodes SET labels = (labels - coalesce(sqlc.arg(remove)::text[], '{}')) || coalesce(nullif(sqlc.arg(labels)::jsonb, 'null'), '{}')
WHERE node_id = sqlc.arg(node_id);

-- name: SetNodeGPUs :exec
UPDATE nodes SET gpus_total = sqlc.arg(gpus_total) WHERE node_id = sqlc.arg(node_id);

-- Names that a mistyped one may have meant.
-- name: HostsLike :many
SELECT host FROM nodes WHERE lower(host) LIKE sqlc.arg(pattern)::text AND state <> 'removed' ORDER BY host LIMIT 3;

-- name: ExpireRequestKeys :exec
DELETE FROM request_keys WHERE created_at < now() - make_interval(secs => sqlc.arg(lifetime_seconds)::float8);

-- name: UseRequestKey :execrows
INSERT INTO request_keys (scope, key, subject) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: RequestKey :one
SELECT subject, result FROM request_keys WHERE scope = $1 AND key = $2;

-- name: KeepRequestResult :exec
UPDATE request_keys SET result = $3 WHERE scope = $1 AND key = $2;

-- name: DropRequestKey :exec
DELETE FROM request_keys WHERE scope = $1 AND key = $2;
