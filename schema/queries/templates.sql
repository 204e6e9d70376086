-- name: LockTemplate :one
SELECT version, artifacts, managed, policy, agent_release, agent_release_arm64, updated_at, updated_by, deleted_at FROM templates WHERE name = $1 FOR UPDATE;

-- Stores the next version of a template. No row if a concurrent request stored one.
-- name: PutTemplate :one
INSERT INTO templates AS t (name, version, artifacts, managed, policy, agent_release, agent_release_arm64, updated_by)
VALUES (sqlc.arg(name), sqlc.arg(version), sqlc.arg(artifacts), sqlc.arg(managed), sqlc.arg(policy), sqlc.arg(agent_release), sqlc.arg(agent_release_arm64), sqlc.arg(updated_by))
ON CONFLICT (name) DO UPDATE SET version = excluded.version, artifacts = excluded.artifacts, managed = excluded.managed, policy = excluded.policy,
    agent_release = excluded.agent_release, agent_release_arm64 = excluded.agent_release_arm64, updated_by = excluded.updated_by, updated_at = now(), deleted_at = NULL
WHERE t.version < excluded.version
RETURNING updated_at;

-- name: DeleteTemplate :execrows
UPDATE templates SET deleted_at = now() WHERE name = $1 AND deleted_at IS NULL;

-- name: TemplateAssignments :many
SELECT kind, value FROM template_assignments WHERE template = $1 ORDER BY kind, value;

-- name: Unassign :exec
DELETE FROM template_assignments WHERE template = $1;

-- Assigns those of the SKUs or classes that no template has.
-- name: Assign :many
INSERT INTO template_assignments (kind, value, template)
SELECT sqlc.arg(kind), unnest(sqlc.arg(assigned)::text[]), sqlc.arg(template)
ON CONFLICT (kind, value) DO NOTHING RETURNING value;

-- name: AssignedTo :one
SELECT template FROM template_assignments WHERE kind = $1 AND value = $2;

-- Those of the names that are no SKU.
-- name: UnknownSKUs :many
SELECT given.name::text FROM unnest(sqlc.arg(names)::text[]) AS given (name) WHERE NOT EXISTS (SELECT FROM skus s WHERE s.name = given.name);

-- Stores what a node reported. No row if it was removed or has begun another incarnation.
-- name: PutArtifacts :execrows
INSERT INTO node_artifacts (node_id, incarnation, artifacts, reported_at)
SELECT n.node_id, n.incarnation, sqlc.arg(artifacts), now() FROM nodes n WHERE n.node_id = sqlc.arg(node_id) AND n.incarnation = sqlc.arg(incarnation) AND n.state <> 'removed'
ON CONFLICT (node_id) DO UPDATE SET incarnation = excluded.incarnation, artifacts = excluded.artifacts, reported_at = excluded.reported_at;

-- Stores the drift of a node if it is another one than before. The caller holds the node's lock.
-- name: PutDrift :execrows
INSERT INTO node_drifts AS d (node_id, template, version, drift, upgrade)
VALUES (sqlc.arg(node_id), sqlc.arg(template), sqlc.arg(version), sqlc.arg(drift), sqlc.arg(upgrade))
ON CONFLICT (node_id) DO UPDATE SET template = excluded.template, version = excluded.version, drift = excluded.drift, upgrade = excluded.upgrade,
    since = CASE WHEN d.ended_at IS NULL THEN d.since ELSE now() END, ended_at = NULL
WHERE d.drift <> excluded.drift OR d.ended_at IS NOT NULL;

-- Stores that an unchanged drift is one from another template or version.
-- name: MoveDrift :exec
UPDATE node_drifts SET template = sqlc.arg(template), version = sqlc.arg(version) WHERE node_id = sqlc.arg(node_id);

-- Ends the drift of a node. What its policy started stays known. No row if there is no drift.
-- name: EndDrift :many
WITH gone AS (DELETE FROM node_drifts d WHERE d.node_id = $1 AND d.remedy IS NULL RETURNING d.node_id),
    kept AS (UPDATE node_drifts d SET drift = '{}', upgrade = '', ended_at = now() WHERE d.node_id = $1 AND d.remedy IS NOT NULL AND d.ended_at IS NULL RETURNING d.node_id)
SELECT node_id FROM gone UNION ALL SELECT node_id FROM kept;

-- The remedies that hold a place: those that run or are parked, and those that may still claim their node.
-- name: OpenRemedies :one
SELECT count(*) FROM node_drifts d LEFT JOIN operations o ON o.operation_id = d.remedy
WHERE d.remedy IS NOT NULL AND d.remedy_refused = ''
  AND CASE WHEN o.operation_id IS NULL THEN d.remedy_at > now() - make_interval(secs => sqlc.arg(claim_seconds)::float8) ELSE o.ended_at IS NULL END;

-- The remedies that have not cured by version: those whose node still differs and that run, ended, or may
-- still claim their node.
-- name: UncuredRemedies :many
SELECT d.remedy_upgrade AS upgrade, count(*)::int AS nodes
FROM node_drifts d JOIN nodes n USING (node_id) LEFT JOIN operations o ON o.operation_id = d.remedy
WHERE d.remedy IS NOT NULL AND d.remedy_refused = '' AND d.upgrade = d.remedy_upgrade AND d.remedy_incarnation = n.incarnation
  AND (o.operation_id IS NOT NULL OR d.remedy_at > now() - make_interval(secs => sqlc.arg(claim_seconds)::float8))
GROUP BY 1;

-- Nodes whose policy starts an upgrade and that can be upgraded now. Each upgrade is started once in an
-- incarnation of the node; one that was refused or did not claim its node is tried again after an hour.
-- name: DueRemedies :many
SELECT d.node_id, d.upgrade, n.host, n.sku, n.region_code, coalesce(n.labels ->> 'rack', '')::text AS rack, n.lifecycle_class, n.gpus_total, now()::timestamptz AS now
FROM node_drifts d JOIN nodes n USING (node_id) JOIN templates t ON t.name = d.template
WHERE t.deleted_at IS NULL AND t.policy = 'notify_and_proceed' AND t.version = d.version AND CASE n.facts ->> 'arch' WHEN 'arm64' THEN t.agent_release_arm64 ELSE t.agent_release END <> '' AND d.upgrade <> ''
  AND (d.remedy IS NULL OR d.remedy_upgrade <> d.upgrade OR d.remedy_incarnation <> n.incarnation
    OR d.remedy_at < now() - interval '1 hour' AND (d.remedy_refused <> '' OR NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = d.remedy)))
  AND n.state = 'active' AND NOT n.cordoned AND n.identity_locked_at IS NULL AND n.agent_fault = '' AND n.last_heartbeat_at > now() - interval '2 minutes'
  AND NOT EXISTS (SELECT FROM operations o WHERE o.node_id = d.node_id AND o.ended_at IS NULL)
  AND NOT EXISTS (SELECT FROM budget_reservations b WHERE b.node_id = d.node_id)
ORDER BY d.since, d.node_id;

-- name: BeginRemedy :exec
UPDATE node_drifts d SET remedy = sqlc.arg(remedy)::uuid, remedy_at = now(), remedy_upgrade = d.upgrade, remedy_refused = '', remedy_incarnation = n.incarnation
FROM nodes n WHERE n.node_id = d.node_id AND d.node_id = sqlc.arg(node_id);

-- The remedies whose operation must be started, or whose start is not known.
-- name: PendingRemedies :many
SELECT d.remedy::uuid AS remedy, d.node_id, d.template, d.version, d.upgrade, (CASE n.facts ->> 'arch' WHEN 'arm64' THEN t.agent_release_arm64 ELSE t.agent_release END)::text AS agent_release, n.host, n.region_code,
       coalesce((SELECT i.provider FROM instances i WHERE i.node_id = d.node_id AND i.state <> 'terminated'), n.onboarding_mode)::text AS provider
FROM node_drifts d JOIN nodes n USING (node_id) JOIN templates t ON t.name = d.template
WHERE d.remedy IS NOT NULL AND d.remedy_refused = '' AND d.remedy_at > now() - make_interval(secs => sqlc.arg(start_seconds)::float8)
  AND d.remedy_upgrade = d.upgrade AND t.version = d.version AND CASE n.facts ->> 'arch' WHEN 'arm64' THEN t.agent_release_arm64 ELSE t.agent_release END <> '' AND t.deleted_at IS NULL AND t.policy = 'notify_and_proceed'
  AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = d.remedy)
ORDER BY d.since, d.node_id;

-- name: RefuseRemedy :exec
UPDATE node_drifts SET remedy_refused = sqlc.arg(refused) WHERE node_id = sqlc.arg(node_id) AND remedy = sqlc.arg(remedy)::uuid;

-- name: CountDrifts :one
SELECT count(*) FROM node_drifts WHERE ended_at IS NULL;

-- Excludes other transactions that choose remedies.
-- name: LockRemedies :exec
SELECT pg_advisory_xact_lock(hashtextextended('gpuaas.drift.remedies', 0));

-- The nodes that differ, by template, change and declared artifact. The names of others are of nodes.
-- name: DriftCounts :many
SELECT d.template, c.change::text AS change, (CASE WHEN c.change = 'detach' THEN '' ELSE x ->> 'name' END)::text AS artifact, count(DISTINCT d.node_id) AS nodes
FROM node_drifts d CROSS JOIN (VALUES ('attach'), ('detach'), ('update')) c (change)
    CROSS JOIN jsonb_array_elements(coalesce(d.drift -> c.change, '[]')) x
GROUP BY 1, 2, 3 ORDER BY nodes DESC, 1, 2, 3;
