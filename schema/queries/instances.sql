-- name: LiveInstance :one
SELECT instance_id, provider, external_id, state FROM instances WHERE node_id = $1 AND state <> 'terminated';

-- The machine may have been created before its instance was recorded.
-- name: InsertInstance :exec
INSERT INTO instances (instance_id, node_id, provider, state, external_id)
VALUES (sqlc.arg(instance_id), sqlc.arg(node_id), sqlc.arg(provider), sqlc.arg(state),
    coalesce((SELECT r.external_id FROM resources r
              WHERE r.node_id = sqlc.arg(node_id) AND r.kind = 'instance' AND r.state = 'created'
              ORDER BY r.created_at DESC LIMIT 1), ''));

-- name: SetInstanceState :exec
UPDATE instances SET state = $2, state_since = now() WHERE node_id = $1 AND state <> 'terminated';

-- name: SetInstanceExternalID :exec
UPDATE instances SET external_id = $2 WHERE node_id = $1 AND state <> 'terminated';
