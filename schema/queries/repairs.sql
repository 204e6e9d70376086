-- What the node's last heartbeat says of its boot; see HeartbeatAge. deaf is set while the node API cannot have
-- received heartbeats for two minutes.
-- name: NodeBoot :one
SELECT host, boot_id, incarnation, uptime_seconds, identity_locked_at, identity_lock_reason, identity_locked_by, identity_lock_note,
       (CASE WHEN last_heartbeat_at IS NULL THEN -1
             ELSE greatest(extract(epoch FROM now() - last_heartbeat_at), 0) END)::float8 AS seconds, (NOT node_api_receiving(120))::boolean AS deaf
FROM nodes WHERE node_id = $1;

-- The end of an attempt is final: a late call of the beginning does not reopen it.
-- name: UpsertAttempt :exec
INSERT INTO recovery_attempts (operation_id, rung, node_id, sku, fault, started_at, ended_at, outcome, boot_before, boot_after, tests)
VALUES (sqlc.arg(operation_id), sqlc.arg(rung), sqlc.arg(node_id), sqlc.arg(sku), sqlc.arg(fault), sqlc.arg(started_at), sqlc.narg(ended_at),
        sqlc.arg(outcome), sqlc.arg(boot_before), sqlc.arg(boot_after), sqlc.arg(tests))
ON CONFLICT (operation_id, rung) DO UPDATE SET fault = excluded.fault, started_at = excluded.started_at, ended_at = excluded.ended_at,
    outcome = excluded.outcome, boot_before = excluded.boot_before, boot_after = excluded.boot_after, tests = excluded.tests
WHERE recovery_attempts.outcome = '' OR excluded.outcome <> '';

-- The boot that a rung ends, as its first call recorded it.
-- name: BootBefore :one
SELECT boot_before FROM recovery_attempts WHERE operation_id = $1 AND rung = $2;

-- name: RecentAttempts :many
SELECT operation_id, rung, node_id, sku, fault, started_at, ended_at, outcome, boot_before, boot_after, tests
FROM recovery_attempts WHERE node_id = sqlc.arg(node_id) AND operation_id <> sqlc.arg(operation_id)
ORDER BY started_at DESC LIMIT sqlc.arg(most);

-- name: OperationDocument :one
SELECT document FROM operations WHERE operation_id = $1;

-- name: InsertReset :execrows
INSERT INTO machine_resets (operation_id, step) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: DeleteReset :exec
DELETE FROM machine_resets WHERE operation_id = $1 AND step = $2;

-- name: InsertBundle :exec
INSERT INTO rma_bundles (operation_id, node_id, host, bundle) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- Deletes old bundles, but not those of a node that is still quarantined.
-- name: DeleteOldBundles :execrows
DELETE FROM rma_bundles WHERE operation_id IN (
    SELECT b.operation_id FROM rma_bundles b
    WHERE b.created_at < now() - make_interval(secs => sqlc.arg(keep_seconds)::float8)
      AND NOT EXISTS (SELECT FROM nodes n WHERE n.node_id = b.node_id AND n.state = 'quarantined')
    ORDER BY b.created_at LIMIT sqlc.arg(max_rows)::bigint);

-- name: NewestBundle :one
SELECT bundle FROM rma_bundles WHERE node_id = $1 ORDER BY created_at DESC LIMIT 1;

-- name: BundleNode :one
SELECT n.node_id, n.host, n.sku, n.region_code, n.onboarding_mode, n.boot_id, n.agent_version, n.facts, now()::timestamptz AS now
FROM nodes n WHERE n.node_id = $1;

-- name: BundleTasks :many
SELECT task_id, type, status, step, result, finished_at FROM node_tasks WHERE operation_id = $1 ORDER BY seq DESC LIMIT $2;

-- name: BundleAudit :one
SELECT coalesce(min(seq), 0)::bigint AS first_seq, coalesce(max(seq), 0)::bigint AS last_seq
FROM audit_events WHERE stream = sqlc.arg(stream)::text AND operation_id = sqlc.arg(operation_id)::text;

-- The conditions of the node. One without a report for so long or since a restore of the database, or of an
-- earlier incarnation, is unknown.
-- name: NodeConditions :many
SELECT c.checker, c.component, c.status, c.reason, c.code, c.repair, c.detail, c.since, c.samples,
       (r.incarnation = n.incarnation AND r.reported_at > greatest(now() - make_interval(secs => sqlc.arg(fresh_seconds)::float8), (SELECT max(started_at) FROM restore_modes)))::boolean AS fresh
FROM conditions c JOIN health_reports r USING (node_id, source) JOIN nodes n USING (node_id)
WHERE c.node_id = sqlc.arg(node_id) ORDER BY c.checker, c.component, c.source;

-- name: BundleSignals :many
SELECT signal_id, type, source, at, status, component, reason, code, repair, boot_id, detail
FROM signals WHERE node_id = $1 ORDER BY at DESC, signal_id DESC LIMIT $2;
