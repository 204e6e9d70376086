-- name: InsertRotation :execrows
INSERT INTO rotations (rotation_id, kind, phase, old_key, grace_seconds, approved, actor, via, reason)
VALUES (sqlc.arg(rotation_id), sqlc.arg(kind), sqlc.arg(phase), sqlc.arg(old_key), sqlc.arg(grace_seconds), sqlc.arg(approved),
        sqlc.arg(actor), sqlc.arg(via), sqlc.arg(reason))
ON CONFLICT DO NOTHING;

-- name: OpenRotation :one
SELECT *, now()::timestamptz AS now FROM rotations WHERE ended_at IS NULL;

-- name: LockOpenRotation :one
SELECT *, now()::timestamptz AS now FROM rotations WHERE ended_at IS NULL FOR NO KEY UPDATE;

-- name: NewestRotation :one
SELECT *, now()::timestamptz AS now FROM rotations ORDER BY ended_at IS NOT NULL, started_at DESC LIMIT 1;

-- Writes a rotation whose step is still the one that the caller read.
-- name: SaveRotation :execrows
UPDATE rotations SET step = step + 1, phase = sqlc.arg(phase), phase_since = sqlc.arg(phase_since), old_key = sqlc.arg(old_key),
    new_key = sqlc.arg(new_key), set_version = sqlc.arg(set_version), ca_bundle = sqlc.arg(ca_bundle), ca_issuer = sqlc.arg(ca_issuer),
    ca_issuer_key = sqlc.arg(ca_issuer_key), approved = sqlc.arg(approved), paused = sqlc.arg(paused),
    ended_at = sqlc.narg(ended_at), outcome = sqlc.arg(outcome), failure = '', checked_at = now()
WHERE rotation_id = sqlc.arg(rotation_id) AND step = sqlc.arg(step);

-- Writes what a decision about a rotation changes, which is never a key: the admin API has no
-- privilege for those columns.
-- name: DecideRotation :execrows
UPDATE rotations SET step = step + 1, phase = sqlc.arg(phase), phase_since = sqlc.arg(phase_since),
    set_version = sqlc.arg(set_version), ca_bundle = sqlc.arg(ca_bundle), ca_issuer = sqlc.arg(ca_issuer),
    ca_issuer_key = sqlc.arg(ca_issuer_key), approved = sqlc.arg(approved), paused = sqlc.arg(paused),
    ended_at = sqlc.narg(ended_at), outcome = sqlc.arg(outcome), failure = '', checked_at = now()
WHERE rotation_id = sqlc.arg(rotation_id) AND step = sqlc.arg(step);

-- Records that the workflow looked at the open rotation, and what prevented it from
-- continuing.
-- name: NoteRotationChecked :exec
UPDATE rotations SET checked_at = now(), failure = sqlc.arg(failure) WHERE rotation_id = sqlc.arg(rotation_id) AND ended_at IS NULL;

-- A rotation waits for every node whose agent has polled in its incarnation and whose
-- identity is accepted. A node has confirmed if the server last accepted a certificate of
-- ca_issuer, if it reports the bundle ca_bundle, or otherwise if it reports the set or a
-- later one of the same chain.
-- name: RotationCounts :one
WITH asked AS (
    SELECT n.node_id, CASE
        WHEN sqlc.arg(ca_issuer)::text <> '' THEN EXISTS (SELECT 1 FROM node_certificates c
            WHERE c.node_id = n.node_id AND c.slot = 'current' AND c.incarnation = n.incarnation AND c.issuer = sqlc.arg(ca_issuer)::text)
        WHEN sqlc.arg(ca_bundle)::text <> '' THEN EXISTS (SELECT 1 FROM node_ca_bundles b
            WHERE b.node_id = n.node_id AND b.incarnation = n.incarnation AND b.digest = sqlc.arg(ca_bundle)::text)
        ELSE EXISTS (SELECT 1 FROM verifier_sets s
            WHERE s.version = n.set_version AND s.hash = n.set_hash AND s.version >= sqlc.arg(set_version)::bigint)
        END AS confirmed
    FROM nodes n
    WHERE n.state <> 'removed' AND n.identity_locked_at IS NULL AND n.polled_incarnation = n.incarnation
)
SELECT count(*) AS nodes, count(*) FILTER (WHERE confirmed) AS confirmed,
    count(*) FILTER (WHERE NOT confirmed AND EXISTS (SELECT 1 FROM rotation_waivers w
        WHERE w.rotation_id = sqlc.arg(rotation_id) AND w.node_id = asked.node_id)) AS waived,
    (SELECT count(*) FROM node_tasks t WHERE t.finished_at IS NULL AND t.envelope_expires_at > now()
        AND t.key_id = sqlc.arg(key_id)::text AND sqlc.arg(key_id)::text <> '') AS open_tasks
FROM asked;

-- Counts the replicas of the node API that reported a short time ago, and those of them that
-- accept the CAs.
-- name: ReplicasReloaded :one
SELECT count(*) AS replicas, count(*) FILTER (WHERE node_cas = sqlc.arg(ca_bundle)::text) AS reloaded
FROM node_api_replicas WHERE seen_at > now() - make_interval(secs => sqlc.arg(gone_seconds)::float8);

-- name: RotationWaiting :many
SELECT n.node_id, n.host, n.state, n.set_version,
    (n.set_hash <> '' AND NOT EXISTS (SELECT 1 FROM verifier_sets v WHERE v.version = n.set_version AND v.hash = n.set_hash))::boolean AS set_lost,
    n.last_heartbeat_at, coalesce(c.issuer, '')::text AS issuer, coalesce(b.digest, '')::text AS ca_bundle
FROM nodes n LEFT JOIN node_certificates c ON c.node_id = n.node_id AND c.slot = 'current' AND c.incarnation = n.incarnation
    LEFT JOIN node_ca_bundles b ON b.node_id = n.node_id AND b.incarnation = n.incarnation
WHERE n.state <> 'removed' AND n.identity_locked_at IS NULL AND n.polled_incarnation = n.incarnation
  AND CASE WHEN sqlc.arg(ca_issuer)::text <> '' THEN c.issuer IS DISTINCT FROM sqlc.arg(ca_issuer)::text
           WHEN sqlc.arg(ca_bundle)::text <> '' THEN b.digest IS DISTINCT FROM sqlc.arg(ca_bundle)::text
           ELSE NOT EXISTS (SELECT 1 FROM verifier_sets s
                WHERE s.version = n.set_version AND s.hash = n.set_hash AND s.version >= sqlc.arg(set_version)::bigint) END
  AND NOT EXISTS (SELECT 1 FROM rotation_waivers w WHERE w.rotation_id = sqlc.arg(rotation_id) AND w.node_id = n.node_id)
ORDER BY n.host, n.node_id LIMIT sqlc.arg(most);

-- Lists nodes that have not confirmed a phase of a rotation of the node CA, to be sent
-- agent.update_trust: those with a recent heartbeat that have no open task of the phase. A node
-- whose task failed waits for repeat_seconds, and twice as long after each further one, at most
-- an hour. Nodes without a task come first, then those that have waited longest. next_seq is the
-- sequence of the node's next task.
-- name: NodesToUpdate :many
SELECT n.node_id, n.incarnation,
    (greatest(n.task_seq_floor, (SELECT max(t.seq) FROM node_tasks t WHERE t.node_id = n.node_id)) + 1)::bigint AS next_seq
FROM nodes n CROSS JOIN LATERAL (
    SELECT count(*) AS tasks, max(coalesce(t.finished_at, t.envelope_expires_at)) AS ended_at FROM node_tasks t
    WHERE t.node_id = n.node_id AND t.operation_id = sqlc.arg(rotation_id)::uuid AND t.step LIKE sqlc.arg(phase)::text || '.%'
) sent
WHERE n.state <> 'removed' AND n.identity_locked_at IS NULL AND n.polled_incarnation = n.incarnation
  AND n.last_heartbeat_at > now() - make_interval(secs => sqlc.arg(silent_seconds)::float8)
  AND CASE WHEN sqlc.arg(ca_issuer)::text <> '' THEN NOT EXISTS (SELECT 1 FROM node_certificates c
                WHERE c.node_id = n.node_id AND c.slot = 'current' AND c.incarnation = n.incarnation AND c.issuer = sqlc.arg(ca_issuer)::text)
           ELSE NOT EXISTS (SELECT 1 FROM node_ca_bundles b
                WHERE b.node_id = n.node_id AND b.incarnation = n.incarnation AND b.digest = sqlc.arg(ca_bundle)::text) END
  AND (sent.tasks = 0 OR sent.ended_at < now() - make_interval(secs => least(sqlc.arg(repeat_seconds)::float8 * 2 ^ least(sent.tasks - 1, 10), 3600)))
ORDER BY sent.ended_at NULLS FIRST, n.node_id LIMIT sqlc.arg(most);

-- Stores agent.update_trust of a rotation, which no operation and no activity waits for:
-- op_seq 0 and no owner. Stores nothing if the rotation has changed since it was read, the
-- node has another incarnation, or another task has the sequence.
-- name: InsertUpdateTask :execrows
INSERT INTO node_tasks (task_id, node_id, incarnation, seq, type, effect, params, operation_id, op_seq, step, deadline, correlation_id,
                        owner_workflow_id, owner_run_id, owner_activity_id, envelope, envelope_expires_at, body_sha256, key_id)
SELECT sqlc.arg(task_id)::uuid, n.node_id, n.incarnation, sqlc.arg(seq)::bigint, sqlc.arg(type)::text, sqlc.arg(effect)::text,
       sqlc.arg(params)::jsonb, r.rotation_id, 0, sqlc.arg(step)::text, sqlc.arg(deadline)::timestamptz, r.rotation_id::text,
       '', '', '', sqlc.arg(envelope)::bytea, sqlc.arg(deadline)::timestamptz, sqlc.arg(body_sha256)::text, sqlc.arg(key_id)::text
FROM nodes n, rotations r
WHERE n.node_id = sqlc.arg(node_id) AND n.incarnation = sqlc.arg(incarnation)
  AND r.rotation_id = sqlc.arg(rotation_id) AND r.step = sqlc.arg(rotation_step) AND r.ended_at IS NULL
ON CONFLICT DO NOTHING;

-- name: RotationIsOpen :one
SELECT EXISTS (SELECT 1 FROM rotations WHERE rotation_id = $1 AND ended_at IS NULL);

-- Waives the given nodes, or all nodes without a heartbeat for a time. The node of a parked
-- operation is not offline by its state.
-- name: WaiveNodes :many
INSERT INTO rotation_waivers (rotation_id, node_id)
SELECT sqlc.arg(rotation_id)::uuid, n.node_id FROM nodes n
WHERE n.state <> 'removed' AND (n.node_id = ANY (sqlc.arg(node_ids)::uuid[]) OR sqlc.arg(offline)::boolean AND
        coalesce(n.last_heartbeat_at, '-infinity') < now() - make_interval(secs => sqlc.arg(silent_seconds)::float8))
ON CONFLICT DO NOTHING RETURNING node_id;

-- name: TasksSignedBy :many
SELECT task_id, node_id, operation_id, incarnation, seq, type, body_sha256, envelope FROM node_tasks
WHERE finished_at IS NULL AND envelope_expires_at > now() AND key_id = sqlc.arg(key_id) ORDER BY task_id LIMIT sqlc.arg(most);

-- Replaces the envelope of an open task by one with the same signed body.
-- name: ReplaceEnvelope :many
UPDATE node_tasks SET envelope = sqlc.arg(envelope), key_id = sqlc.arg(key_id)
WHERE task_id = sqlc.arg(task_id) AND finished_at IS NULL AND body_sha256 = sqlc.arg(body_sha256)::text
RETURNING node_id;
