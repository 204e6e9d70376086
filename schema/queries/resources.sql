-- name: PlanResource :execrows
INSERT INTO resources (resource_id, node_id, operation_id, kind, provider, state)
VALUES ($1, $2, $3, $4, $5, 'planned')
ON CONFLICT ON CONSTRAINT resources_pkey DO NOTHING;

-- name: GetResource :one
SELECT resource_id, node_id, operation_id, kind, provider, external_id, state FROM resources
WHERE resource_id = $1 AND node_id = $2;

-- A resource that appeared after its release is open again.
-- name: CreatedResource :exec
UPDATE resources SET state = 'created', external_id = $2, created_at = now(), released_at = NULL WHERE resource_id = $1;

-- name: ReleasedResource :exec
UPDATE resources SET state = 'released', released_at = now() WHERE resource_id = $1;

-- name: OpenResources :many
SELECT r.resource_id, r.node_id, r.kind, r.provider, r.external_id, r.state, n.host, coalesce(i.region, '')::text AS region
FROM resources r JOIN nodes n ON n.node_id = r.node_id LEFT JOIN instances i ON i.instance_id = r.resource_id
WHERE r.node_id = $1 AND r.state <> 'released' ORDER BY r.planned_at, r.resource_id;
