-- Lets one transaction at a time store the surplus machines of a provider.
-- name: LockSurplus :exec
SELECT pg_advisory_xact_lock(hashtextextended('gpuaas-machine-leftovers ' || sqlc.arg(provider)::text, 0));

-- The ledger entries of the instances, and with all_open every open entry of the provider. An
-- entry is owned while its instance lives, and held while an operation holds its node.
-- name: MachineEntries :many
SELECT r.resource_id, r.node_id, r.external_id, r.state, n.host, coalesce(i.region, '')::text AS region,
    (n.state <> 'removed' AND coalesce(i.state, 'terminated') <> 'terminated')::boolean AS owned,
    EXISTS (SELECT FROM operations o WHERE o.node_id = r.node_id AND o.op_seq > 0 AND o.ended_at IS NULL)::boolean AS held
FROM resources r JOIN nodes n ON n.node_id = r.node_id LEFT JOIN instances i ON i.instance_id = r.resource_id
WHERE r.kind = 'instance' AND r.provider = sqlc.arg(provider)
  AND (r.resource_id = ANY (sqlc.arg(instance_ids)::uuid[]) OR sqlc.arg(all_open)::boolean AND r.state <> 'released');

-- Those of the instances that live. One of them may lack a ledger entry after a restore.
-- name: LiveInstances :many
SELECT instance_id FROM instances
WHERE provider = sqlc.arg(provider) AND state <> 'terminated' AND instance_id = ANY (sqlc.arg(instance_ids)::uuid[]);

-- A machine of another class, or one that was deleted before, is new.
-- name: StoreSurplus :exec
INSERT INTO machine_leftovers (provider, instance_id, external_id, host, phase, detail, class)
SELECT sqlc.arg(provider)::text, unnest(sqlc.arg(instance_ids)::text[]), unnest(sqlc.arg(external_ids)::text[]), unnest(sqlc.arg(hosts)::text[]),
    unnest(sqlc.arg(phases)::text[]), unnest(sqlc.arg(details)::text[]), unnest(sqlc.arg(classes)::text[])
ON CONFLICT (provider, instance_id) DO UPDATE SET
    external_id = EXCLUDED.external_id, host = EXCLUDED.host, phase = EXCLUDED.phase, detail = EXCLUDED.detail, class = EXCLUDED.class,
    first_seen = CASE WHEN machine_leftovers.class = EXCLUDED.class AND machine_leftovers.deleted_at IS NULL THEN machine_leftovers.first_seen ELSE now() END,
    attempted_at = CASE WHEN machine_leftovers.class = EXCLUDED.class AND machine_leftovers.deleted_at IS NULL THEN machine_leftovers.attempted_at END,
    last_seen = now(), deleted_at = NULL;

-- Forgets the surplus machines of the provider that are none of these: they are owned or gone.
-- name: ForgetSurplus :exec
DELETE FROM machine_leftovers
WHERE provider = sqlc.arg(provider) AND instance_id <> ALL (sqlc.arg(instance_ids)::text[])
  AND (deleted_at IS NULL OR deleted_at < now() - interval '30 days');

-- Keeps the stored machines of nodes that an operation holds.
-- name: KeepSurplus :exec
UPDATE machine_leftovers SET last_seen = now()
WHERE provider = sqlc.arg(provider) AND instance_id = ANY (sqlc.arg(instance_ids)::text[]) AND deleted_at IS NULL;

-- How many deletions were attempted in the last seconds.
-- name: DeletionsAttempted :one
SELECT count(*) FROM machine_leftovers WHERE attempted_at > now() - make_interval(secs => sqlc.arg(seconds)::float8);

-- The leftovers that may be deleted, without those of nodes that an operation holds. Those that were
-- attempted before come last, so that one whose deletion fails does not delay the others.
-- name: DueLeftovers :many
SELECT l.provider, l.instance_id, l.external_id, l.host, l.phase, l.detail, l.class, l.first_seen FROM machine_leftovers l
WHERE l.class = 'leftover' AND l.deleted_at IS NULL AND l.provider = ANY (sqlc.arg(providers)::text[])
  AND l.first_seen <= now() - make_interval(secs => sqlc.arg(grace_seconds)::float8)
  AND NOT EXISTS (SELECT FROM operations o JOIN resources r ON r.node_id = o.node_id
                  WHERE o.op_seq > 0 AND o.ended_at IS NULL AND r.kind = 'instance' AND r.resource_id::text = l.instance_id)
ORDER BY l.attempted_at NULLS FIRST, l.first_seen, l.instance_id LIMIT sqlc.arg(most);

-- name: LockLeftover :one
SELECT external_id, attempted_at FROM machine_leftovers
WHERE provider = sqlc.arg(provider) AND instance_id = sqlc.arg(instance_id) AND class = 'leftover' AND deleted_at IS NULL
  AND first_seen <= now() - make_interval(secs => sqlc.arg(grace_seconds)::float8)
FOR UPDATE;

-- name: AttemptDeletion :exec
UPDATE machine_leftovers SET attempted_at = now() WHERE provider = $1 AND instance_id = $2;

-- name: LeftoverDeleted :exec
UPDATE machine_leftovers SET deleted_at = now() WHERE provider = $1 AND instance_id = $2 AND deleted_at IS NULL;

-- The surplus machines that have had their class for the grace period, by provider and class, with the
-- names of the five oldest, of duplicates with their IDs at the provider. attempted_seconds is the
-- time since the last attempt to delete one of them. A provider that no worker has any longer is not
-- reported.
-- name: SurplusFaults :many
SELECT provider, class, count(*) AS machines, extract(epoch FROM now() - min(first_seen))::float8 AS oldest_seconds,
    count(attempted_at) AS attempted, coalesce(extract(epoch FROM now() - max(attempted_at)), 0)::float8 AS attempted_seconds,
    ((array_agg(host || ' (' || instance_id || CASE WHEN class = 'duplicate' THEN ', ' || external_id ELSE '' END || ')'
        ORDER BY first_seen, instance_id))[1:5])::text[] AS oldest
FROM machine_leftovers
WHERE deleted_at IS NULL AND last_seen > now() - interval '1 day'
  AND first_seen <= now() - make_interval(secs => sqlc.arg(grace_seconds)::float8)
GROUP BY provider, class ORDER BY provider, class;

-- Counts the surplus machines, for the gauge. Every provider that creates machines has a row.
-- name: SurplusCounts :many
SELECT p.name AS provider, count(l.instance_id) FILTER (WHERE l.class = 'leftover') AS leftovers,
    count(l.instance_id) FILTER (WHERE l.class = 'orphan') AS orphans, count(l.instance_id) FILTER (WHERE l.class = 'duplicate') AS duplicates
FROM providers p LEFT JOIN machine_leftovers l ON l.provider = p.name AND l.deleted_at IS NULL AND l.last_seen > now() - interval '1 day'
WHERE (p.info ->> 'creates')::boolean GROUP BY p.name ORDER BY p.name;
