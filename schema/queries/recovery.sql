-- name: NewestPolicy :one
SELECT version, body, digest, coalesce(body ->> 'mode', '')::text AS mode, actor, via, reason, created_at FROM recovery_policies ORDER BY version DESC LIMIT 1;

-- name: PolicyWithDigest :one
SELECT version, body, digest, coalesce(body ->> 'mode', '')::text AS mode, actor, via, reason, created_at FROM recovery_policies
WHERE digest = $1 ORDER BY version DESC LIMIT 1;

-- One transaction at a time adds a policy.
-- name: LockPolicies :exec
SELECT pg_advisory_xact_lock(hashtextextended('gpuaas-recovery-policies', 0));

-- name: AddPolicy :one
INSERT INTO recovery_policies (version, body, digest, actor, via, reason)
SELECT coalesce(max(version), 0) + 1, sqlc.arg(body), sqlc.arg(digest), sqlc.arg(actor), sqlc.arg(via), sqlc.arg(reason) FROM recovery_policies
RETURNING version, created_at;

-- name: LockBreaker :one
SELECT breaker, incidents, round, decided_at, now()::timestamptz AS now FROM recovery_breaker FOR UPDATE;

-- name: ReadBreaker :one
SELECT breaker, incidents, round, decided_at, now()::timestamptz AS now FROM recovery_breaker;

-- name: SetBreaker :exec
UPDATE recovery_breaker SET breaker = $1, incidents = $2, round = round + 1, decided_at = now();

-- name: CloseBreaker :exec
UPDATE recovery_breaker SET breaker = $1;

-- The nodes to decide about: those with an unhealthy condition of a fresh report, those without
-- heartbeats, those in a phase other than healthy, and the one that the breaker probes. A node may report
-- any uptime: that of a century at most counts.
-- name: NodesToDecide :many
SELECT n.node_id, n.host, n.sku, n.region_code, coalesce(n.labels ->> 'rack', '')::text AS rack, n.lifecycle_class, n.gpus_total, n.state, n.cordoned,
    (n.identity_locked_at IS NOT NULL)::boolean AS locked, coalesce((p.info ->> 'creates')::boolean, false)::boolean AS creates,
    coalesce(CASE WHEN n.uptime_seconds > 0 THEN n.last_heartbeat_at - make_interval(secs => least(n.uptime_seconds, 3155760000)) END, 'epoch'::timestamptz)::timestamptz AS booted_at,
    coalesce(i.provider, n.onboarding_mode)::text AS provider,
    coalesce(n.silent_at, 'epoch'::timestamptz)::timestamptz AS silent_at, coalesce(s.phase, '')::text AS phase, coalesce(s.refused, '')::text AS refused,
    coalesce(s.refused_at > now() - make_interval(secs => sqlc.arg(refused_seconds)::float8), false)::boolean AS refused_lately,
    coalesce(o.operation_id::text, '')::text AS operation_id, coalesce(o.action, '')::text AS action,
    coalesce(o.status = 'abandoned', false)::boolean AS abandoned
FROM nodes n LEFT JOIN recovery_states s ON s.node_id = n.node_id
    LEFT JOIN instances i ON i.node_id = n.node_id AND i.state <> 'terminated' LEFT JOIN providers p ON p.name = coalesce(i.provider, n.onboarding_mode)
    LEFT JOIN operations o ON o.node_id = n.node_id AND o.ended_at IS NULL AND o.op_seq > 0
WHERE n.state <> 'removed' AND (s.node_id IS NOT NULL OR n.silent_at IS NOT NULL AND n.state IN ('active', 'offline') OR n.node_id::text = sqlc.arg(probing)::text OR n.node_id IN (
    SELECT c.node_id FROM conditions c JOIN health_reports r ON r.node_id = c.node_id AND r.source = c.source JOIN nodes m ON m.node_id = c.node_id
    WHERE c.status = 'unhealthy' AND r.incarnation = m.incarnation AND r.reported_at > greatest(now() - make_interval(secs => sqlc.arg(fresh_seconds)::float8), (SELECT max(started_at) FROM restore_modes))))
ORDER BY n.host, n.node_id;

-- The conditions of the nodes. Those of a report that is not fresh, of an earlier incarnation, or from before
-- a restore of the database are unknown. Those of a cluster agent that has not reported for a day do not count: it
-- no longer checks the node.
-- name: ConditionsToDecide :many
SELECT c.node_id, c.checker, c.component,
    (CASE WHEN r.incarnation = n.incarnation AND r.reported_at > greatest(now() - make_interval(secs => sqlc.arg(fresh_seconds)::float8), (SELECT max(started_at) FROM restore_modes)) THEN c.status ELSE 'unknown' END)::text AS status,
    c.reason, c.code, c.repair, c.detail, c.since, c.samples,
    (CASE WHEN c.status = 'unhealthy' THEN c.since ELSE c.fault_since END)::timestamptz AS fault_since, c.fault_samples, c.unknown_seconds
FROM conditions c JOIN health_reports r ON r.node_id = c.node_id AND r.source = c.source JOIN nodes n ON n.node_id = c.node_id
WHERE c.node_id = ANY (sqlc.arg(node_ids)::uuid[]) AND (c.source = 'agent' OR r.reported_at > now() - interval '24 hours')
ORDER BY c.node_id, c.source, c.checker, c.component;

-- name: AttemptsToDecide :many
SELECT operation_id, rung, node_id, sku, fault, started_at, ended_at, outcome, boot_before, boot_after, tests FROM recovery_attempts
WHERE node_id = ANY (sqlc.arg(node_ids)::uuid[]) AND started_at > now() - make_interval(secs => sqlc.arg(seconds)::float8) ORDER BY node_id, started_at, rung;

-- How many nodes each scope has that can show a fault: those with an agent. Out are those that a repair
-- of health recovery left quarantined, also one whose run was lost.
-- name: ScopeSizes :many
WITH enrolled AS (
    SELECT n.sku, coalesce(n.labels ->> 'rack', '') AS rack, n.region_code AS region, n.gpus_total,
        (n.state = 'quarantined' AND coalesce((SELECT o.action = 'recover' AND o.via = 'recovery' AND o.status IN ('completed', 'failed', 'abandoned') FROM operations o
            WHERE o.node_id = n.node_id AND o.op_seq > 0 AND o.status <> 'cancelled' AND (o.action = 'recover' OR o.status NOT IN ('failed', 'abandoned'))
            ORDER BY o.op_seq DESC LIMIT 1), false)) AS out
    FROM nodes n WHERE n.state IN ('active', 'offline', 'quarantined', 'draining', 'drained'))
SELECT 'fleet'::text AS scope, ''::text AS key, count(*) AS nodes, count(*) FILTER (WHERE gpus_total > 0) AS gpu_nodes, count(*) FILTER (WHERE out) AS out FROM enrolled
UNION ALL SELECT 'sku', sku, count(*), count(*) FILTER (WHERE gpus_total > 0), count(*) FILTER (WHERE out) FROM enrolled GROUP BY sku
UNION ALL SELECT 'rack', rack, count(*), count(*) FILTER (WHERE gpus_total > 0), count(*) FILTER (WHERE out) FROM enrolled WHERE rack <> '' GROUP BY rack
UNION ALL SELECT 'region', region, count(*), count(*) FILTER (WHERE gpus_total > 0), count(*) FILTER (WHERE out) FROM enrolled GROUP BY region
ORDER BY 1, 2;

-- The reservations that count: of open operations that are not abandoned, and of operations that
-- may still claim their node.
-- name: BudgetInUse :many
SELECT r.operation_id, r.purpose, r.node_id, r.sku, r.rack, r.region, r.reserved_at, (o.operation_id IS NOT NULL)::boolean AS claimed
FROM budget_reservations r LEFT JOIN operations o ON o.operation_id = r.operation_id
WHERE CASE WHEN o.operation_id IS NULL THEN r.reserved_at > now() - make_interval(secs => sqlc.arg(claim_seconds)::float8)
           ELSE o.ended_at IS NULL AND o.status <> 'abandoned' END
ORDER BY r.reserved_at, r.operation_id;

-- name: Reserve :exec
INSERT INTO budget_reservations (operation_id, purpose, node_id, sku, rack, region, decision_id, input)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (operation_id) DO NOTHING;

-- Reserves the budget of a repair that a person started, and that has claimed its node.
-- name: ReserveClaimed :exec
INSERT INTO budget_reservations (operation_id, purpose, node_id, sku, rack, region, input, started_at)
SELECT sqlc.arg(operation_id), 'repair', n.node_id, n.sku, coalesce(n.labels ->> 'rack', ''), n.region_code, '{}', now()
FROM nodes n WHERE n.node_id = sqlc.arg(node_id) ON CONFLICT (operation_id) DO NOTHING;

-- The reservations of repairs whose start is not confirmed.
-- name: StartsToConfirm :many
SELECT r.operation_id, r.input FROM budget_reservations r
WHERE r.purpose = 'repair' AND r.started_at IS NULL AND r.reserved_at > now() - make_interval(secs => sqlc.arg(claim_seconds)::float8)
  AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = r.operation_id)
ORDER BY r.reserved_at, r.operation_id;

-- Withdraws the reservations whose start is not confirmed: no operation claimed its node with them.
-- name: WithdrawStarts :many
DELETE FROM budget_reservations r WHERE r.purpose = 'repair' AND r.started_at IS NULL
  AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = r.operation_id)
RETURNING r.operation_id;

-- Confirms the start of a repair that claims its node now, unless its reservation was withdrawn.
-- name: ClaimReservation :execrows
UPDATE budget_reservations SET started_at = coalesce(started_at, now()) WHERE operation_id = $1 AND purpose = 'repair';

-- name: ConfirmStart :exec
UPDATE budget_reservations SET started_at = coalesce(started_at, now()) WHERE operation_id = $1;

-- Releases the reservation of an operation that does not run. It changes nothing once the operation
-- has claimed its node.
-- name: ReleaseReservation :many
DELETE FROM budget_reservations r WHERE r.operation_id = $1 AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = r.operation_id)
RETURNING r.node_id, r.decision_id;

-- name: DeleteAttempts :exec
DELETE FROM recovery_attempts WHERE operation_id = $1;

-- Deletes the reservations that do not count any longer. That of an abandoned operation counts again if the
-- operation continues.
-- name: ReleaseEnded :exec
DELETE FROM budget_reservations r WHERE EXISTS (SELECT FROM operations o WHERE o.operation_id = r.operation_id AND o.ended_at IS NOT NULL)
   OR r.reserved_at <= now() - make_interval(secs => sqlc.arg(claim_seconds)::float8) AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = r.operation_id);

-- Ends the attempts whose operation ended, was abandoned or never claimed its node, without a recorded outcome. A
-- rung that is only reserved, before the claim and without the boot that it may end, never began.
-- name: EndAttempts :exec
UPDATE recovery_attempts a SET ended_at = now(), outcome = CASE
    WHEN a.boot_before = '' AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = a.operation_id AND o.started_at <= a.started_at) THEN 'not_begun'
    ELSE 'unknown' END
WHERE a.outcome = '' AND (EXISTS (SELECT FROM operations o WHERE o.operation_id = a.operation_id AND (o.ended_at IS NOT NULL OR o.status = 'abandoned'))
   OR a.started_at <= now() - make_interval(secs => sqlc.arg(claim_seconds)::float8) AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = a.operation_id));

-- name: AddDecision :exec
INSERT INTO recovery_decisions (decision_id, node_id, policy_version, mode, phase, fault, rung, brake, why, operation_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: SetState :exec
INSERT INTO recovery_states (node_id, decision_id, phase, why) VALUES ($1, $2, $3, $4)
ON CONFLICT (node_id) DO UPDATE SET decision_id = EXCLUDED.decision_id, why = EXCLUDED.why, phase = EXCLUDED.phase,
    phase_since = CASE WHEN recovery_states.phase = EXCLUDED.phase THEN recovery_states.phase_since ELSE now() END;

-- Deletes the states of removed nodes, and of those whose machine was terminated.
-- name: DropRemoved :exec
DELETE FROM recovery_states s USING nodes n WHERE n.node_id = s.node_id AND (n.state = 'removed' OR n.state = 'registered' AND n.operation_id IS NULL);

-- name: DropState :exec
DELETE FROM recovery_states WHERE node_id = $1;

-- name: RefuseState :exec
UPDATE recovery_states SET refused_at = now(), refused = $2, decision_id = $3, why = $4 WHERE node_id = $1;

-- The last decisions about the nodes that are not healthy.
-- name: LastDecisions :many
SELECT s.node_id, s.why AS shown, s.phase AS state_phase, d.decision_id, d.decided_at, d.policy_version, d.mode, d.phase, d.fault, d.rung, d.brake, d.why, d.operation_id
FROM recovery_states s JOIN recovery_decisions d ON d.decision_id = s.decision_id;

-- name: DecisionOf :one
SELECT decision_id, node_id, policy_version, mode, phase, fault, rung, brake, why, operation_id FROM recovery_decisions WHERE decision_id = $1;

-- The newest attempts since a time.
-- name: AttemptsSince :many
SELECT operation_id, rung, node_id, sku, fault, started_at, ended_at, outcome, boot_before, boot_after, tests FROM recovery_attempts
WHERE started_at >= sqlc.arg(since) ORDER BY started_at DESC, operation_id DESC, rung DESC LIMIT sqlc.arg(most);

-- The nodes with a fault or a repair since a time, for a replay.
-- name: NodesOfFacts :many
SELECT n.node_id, n.host, n.sku, n.region_code, coalesce(n.labels ->> 'rack', '')::text AS rack, n.lifecycle_class, n.gpus_total, n.state,
    coalesce((p.info ->> 'creates')::boolean, false)::boolean AS creates
FROM nodes n LEFT JOIN instances i ON i.node_id = n.node_id AND i.state <> 'terminated' LEFT JOIN providers p ON p.name = coalesce(i.provider, n.onboarding_mode)
WHERE n.node_id IN (SELECT s.node_id FROM signals s WHERE s.at >= sqlc.arg(since)::timestamptz AND s.type LIKE 'health.%'
    UNION SELECT a.node_id FROM recovery_attempts a WHERE a.started_at >= sqlc.arg(since)::timestamptz
    UNION SELECT c.node_id FROM conditions c WHERE c.status = 'unhealthy')
ORDER BY n.host, n.node_id;

-- The repairs that a budget stops in armed mode: how many, and the first one.
-- name: StoppedBy :one
SELECT count(*) AS nodes, coalesce((array_agg(n.host ORDER BY d.decided_at, n.host))[1], '')::text AS host,
    coalesce((array_agg(s.why ORDER BY d.decided_at, n.host))[1], '')::text AS why
FROM recovery_states s JOIN recovery_decisions d ON d.decision_id = s.decision_id JOIN nodes n ON n.node_id = s.node_id
WHERE d.brake = sqlc.arg(brake) AND d.mode = 'armed';

-- The state of health recovery, for the gauges.
-- name: RecoveryCounts :one
SELECT (b.breaker ? 'open_since')::boolean AS breaker_open, jsonb_array_length(b.incidents)::bigint AS incidents,
    (SELECT count(*) FROM recovery_states) AS nodes,
    (SELECT count(*) FROM budget_reservations r LEFT JOIN operations o ON o.operation_id = r.operation_id
     WHERE CASE WHEN o.operation_id IS NULL THEN r.reserved_at > now() - make_interval(secs => sqlc.arg(claim_seconds)::float8)
                ELSE o.ended_at IS NULL AND o.status <> 'abandoned' END) AS used,
    (SELECT count(*) FROM recovery_states s JOIN recovery_decisions d ON d.decision_id = s.decision_id WHERE d.brake = 'budget' AND d.mode = 'armed') AS blocked,
    (SELECT count(*) FROM recovery_states s JOIN recovery_decisions d ON d.decision_id = s.decision_id WHERE d.brake = 'approval' AND d.mode = 'armed') AS unapproved,
    coalesce(extract(epoch FROM now() - b.decided_at), 0)::float8 AS round_age
FROM recovery_breaker b;

-- Counts the nodes of each phase other than healthy, and how long the oldest is in it, for the gauges.
-- name: PhaseCounts :many
SELECT s.phase, count(*) AS nodes, greatest(0, extract(epoch FROM now() - min(s.phase_since)))::float8 AS oldest_seconds
FROM recovery_states s JOIN nodes n USING (node_id) WHERE n.state <> 'removed' GROUP BY s.phase ORDER BY s.phase;

-- Deletes decisions that no node's state needs.
-- name: DeleteOldDecisions :execrows
DELETE FROM recovery_decisions WHERE decision_id IN (
    SELECT d.decision_id FROM recovery_decisions d
    WHERE d.decided_at < now() - make_interval(secs => sqlc.arg(keep_seconds)::float8)
      AND NOT EXISTS (SELECT FROM recovery_states s WHERE s.decision_id = d.decision_id)
    ORDER BY d.decided_at LIMIT sqlc.arg(max_rows)::bigint);

-- name: DeleteOldAttempts :execrows
DELETE FROM recovery_attempts WHERE (operation_id, rung) IN (
    SELECT a.operation_id, a.rung FROM recovery_attempts a
    WHERE a.outcome <> '' AND a.started_at < now() - make_interval(secs => sqlc.arg(keep_seconds)::float8)
    ORDER BY a.started_at LIMIT sqlc.arg(max_rows)::bigint);
