-- name: LiveInstance :one
SELECT instance_id, provider, external_id, state, state_since, region, machine_type, image, spot, ssh_keys
FROM instances WHERE node_id = $1 AND state <> 'terminated';

-- name: InsertInstance :exec
INSERT INTO instances (instance_id, node_id, provider, state, region, machine_type, image, spot, ssh_keys)
VALUES ($1, $2, $3, 'pending', $4, $5, $6, $7, $8);

-- name: SetInstanceState :exec
UPDATE instances SET state = sqlc.arg(state), state_since = now(),
    ended_at = CASE WHEN sqlc.arg(state)::text = 'terminated' THEN now() END
WHERE node_id = sqlc.arg(node_id) AND state <> 'terminated';

-- name: SetInstanceExternalID :exec
UPDATE instances SET external_id = $2 WHERE node_id = $1 AND state <> 'terminated';
