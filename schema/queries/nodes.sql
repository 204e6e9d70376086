-- name: InsertNode :exec
INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode, lifecycle_class,
                   port, ssh_username, ssh_public_key, workload_driver, probe)
VALUES ($1, $2, 'registered', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- The first lock of every transaction that changes a node. NO KEY does not block
-- the foreign-key checks of other tables.
-- name: LockNode :one
SELECT node_id, host, state, cordoned, op_seq, operation_id, incarnation, polled_incarnation,
       recovery_key, previous_recovery_key, identity_sequence, poll_session, poll_contested,
       (identity_locked_at IS NOT NULL)::boolean AS locked, identity_locked_at, identity_lock_reason, identity_locked_by, identity_lock_note, identity_alarm,
       sku, gpus_total, region_code, onboarding_mode, workload_driver, workloads, now()::timestamptz AS now
FROM nodes WHERE node_id = $1 FOR NO KEY UPDATE;

-- name: FindNode :one
SELECT node_id FROM nodes WHERE lower(host) = lower(sqlc.arg(host))
ORDER BY state = 'removed', created_at DESC LIMIT 1;

-- name: ClaimNode :exec
UPDATE nodes SET op_seq = op_seq + 1, operation_id = $3, state = $4,
                 state_since = CASE WHEN state = $4 THEN state_since ELSE now() END
WHERE node_id = $1 AND op_seq = $2;

-- name: SetNodeState :exec
UPDATE nodes SET state = $3, state_since = now() WHERE node_id = $1 AND op_seq = $2;

-- name: SetNodeFacts :exec
UPDATE nodes SET facts = $3 WHERE node_id = $1 AND op_seq = $2;

-- name: ReleaseNode :exec
UPDATE nodes SET operation_id = NULL WHERE node_id = $1 AND op_seq = $2;

-- Starts an incarnation: no recovery key, no lock, no alarm, a new sequence and an unknown
-- verifier set. The recovery key of a locked incarnation may be a thief's.
-- name: NextIncarnation :one
UPDATE nodes SET incarnation = incarnation + 1, recovery_key = NULL, identity_sequence = 0, set_version = 0, set_hash = '',
                 previous_recovery_key = CASE WHEN identity_locked_at IS NULL THEN coalesce(recovery_key, previous_recovery_key)
                                              ELSE previous_recovery_key END,
                 poll_session = '', poll_contested = false, identity_alarm = '', identity_alarm_at = NULL,
                 identity_locked_at = NULL, identity_lock_reason = '', identity_locked_by = '', identity_lock_note = ''
WHERE node_id = $1 RETURNING incarnation;

-- Deletes what the agent of a machine that is gone reported, its polls, and the key that proves an
-- earlier machine: the next one is another machine. task_seq_floor stays: the number of a task is
-- used once, whatever the machine.
-- name: ForgetMachine :exec
UPDATE nodes SET cordoned = false, workloads = '[]', workloads_at = NULL, agent_fault = '', driver = '', driver_fault = '',
                 last_heartbeat_at = NULL, agent_version = '', boot_id = '', uptime_seconds = 0, facts = NULL,
                 polled_incarnation = 0, previous_recovery_key = NULL, silent_at = NULL
WHERE node_id = $1;

-- Stores the recovery key of an enrollment. If the enrollment proves the previous key too,
-- that key proves nothing more: a copy of it cannot lock the node.
-- name: SetRecoveryKey :exec
UPDATE nodes SET recovery_key = nullif(sqlc.arg(recovery_key)::bytea, ''),
    previous_recovery_key = CASE WHEN previous_recovery_key IN (sqlc.arg(recovery_key)::bytea, sqlc.arg(previous_key)::bytea) THEN NULL
                                 ELSE previous_recovery_key END
WHERE node_id = sqlc.arg(node_id) AND (recovery_key IS DISTINCT FROM nullif(sqlc.arg(recovery_key)::bytea, '')
    OR previous_recovery_key IN (sqlc.arg(recovery_key)::bytea, sqlc.arg(previous_key)::bytea));

-- The caller holds the node's lock and read the previous value under it.
-- name: SetSequence :exec
UPDATE nodes SET identity_sequence = $2 WHERE node_id = $1;

-- Locks one incarnation: a concurrent reissue wins.
-- name: LockIdentity :execrows
UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = sqlc.arg(reason),
                 identity_locked_by = sqlc.arg(locked_by), identity_lock_note = sqlc.arg(note)
WHERE node_id = sqlc.arg(node_id) AND incarnation = sqlc.arg(incarnation)
  AND identity_locked_at IS NULL AND state <> 'removed';

-- Lifts a lock, and ends an alarm.
-- name: UnlockIdentity :exec
UPDATE nodes SET identity_locked_at = NULL, identity_lock_reason = '', identity_locked_by = '', identity_lock_note = '',
                 poll_session = '', poll_contested = false, identity_alarm = '', identity_alarm_at = NULL
WHERE node_id = $1;

-- Changes no row if the same alarm was set within the last hour, or if an alarm is shown that
-- is not one of those that this one replaces.
-- name: SetIdentityAlarm :execrows
UPDATE nodes SET identity_alarm = sqlc.arg(reason), identity_alarm_at = now()
WHERE node_id = sqlc.arg(node_id) AND incarnation = sqlc.arg(incarnation)
  AND CASE WHEN identity_alarm = sqlc.arg(reason) THEN identity_alarm_at < now() - interval '1 hour'
           ELSE identity_alarm = ANY (sqlc.arg(replaces)::text[])
                OR coalesce(identity_alarm_at < now() - make_interval(secs => sqlc.arg(alarm_seconds)::float8), true) END;

-- The nodes whose identity is locked, or about which there was an alarm in the last
-- seconds, newest first, and how many there are.
-- name: IdentityAttention :many
SELECT host, identity_lock_reason, identity_locked_by, identity_lock_note, identity_alarm, count(*) OVER () AS nodes,
       extract(epoch FROM now() - coalesce(identity_locked_at, identity_alarm_at))::float8 AS age_seconds
FROM nodes
WHERE state <> 'removed' AND (identity_locked_at IS NOT NULL
    OR identity_alarm_at > now() - make_interval(secs => sqlc.arg(alarm_seconds)::float8))
ORDER BY coalesce(identity_locked_at, identity_alarm_at) DESC LIMIT sqlc.arg(most);

-- Counts them by reason, for the gauge.
-- name: IdentityAttentionCounts :many
SELECT coalesce(nullif(identity_lock_reason, ''), identity_alarm)::text AS reason, count(*) AS nodes FROM nodes
WHERE state <> 'removed' AND (identity_locked_at IS NOT NULL
    OR identity_alarm_at > now() - make_interval(secs => sqlc.arg(alarm_seconds)::float8))
GROUP BY 1;

-- name: RecoveryFacts :one
SELECT state, incarnation, recovery_key, (identity_locked_at IS NOT NULL)::boolean AS locked, identity_lock_reason FROM nodes WHERE node_id = $1;

-- name: SetNodeWork :exec
UPDATE nodes SET cordoned = $2, workloads = $3, workloads_at = $4 WHERE node_id = $1;

-- A heartbeat that a task result overtook must not undo the result. One that is
-- much older means that the node's clock was set back. No row if the node has another
-- incarnation or, unless any_boot is set, another boot.
-- name: Heartbeat :one
UPDATE nodes SET
    last_heartbeat_at = now(), agent_version = sqlc.arg(agent_version), boot_id = sqlc.arg(boot_id),
    agent_fault = sqlc.arg(agent_fault), uptime_seconds = sqlc.arg(uptime_seconds),
    driver = sqlc.arg(driver), driver_fault = sqlc.arg(driver_fault),
    cordoned = CASE WHEN workloads_at > sqlc.arg(at)::timestamptz
                     AND workloads_at < sqlc.arg(at)::timestamptz + interval '1 minute'
                    THEN cordoned ELSE sqlc.arg(cordoned) END,
    workloads = CASE WHEN workloads_at > sqlc.arg(at)::timestamptz
                      AND workloads_at < sqlc.arg(at)::timestamptz + interval '1 minute'
                     THEN workloads ELSE sqlc.arg(workloads) END
WHERE node_id = sqlc.arg(node_id) AND incarnation = sqlc.arg(incarnation)
  AND (sqlc.arg(any_boot)::boolean OR boot_id = sqlc.arg(boot_id))
RETURNING state, (silent_at IS NOT NULL)::boolean AS silent;

-- name: BootOf :one
SELECT boot_id FROM nodes WHERE node_id = $1;

-- name: LastHeartbeat :one
SELECT last_heartbeat_at FROM nodes WHERE node_id = $1;

-- The seconds since the last heartbeat by the database's clock, -1 without one, and the lock of
-- the node's identity. deaf is set while the node API cannot have received heartbeats for two minutes.
-- name: HeartbeatAge :one
SELECT host, identity_locked_at, identity_lock_reason, identity_locked_by, identity_lock_note, (CASE WHEN last_heartbeat_at IS NULL THEN -1
    ELSE greatest(extract(epoch FROM now() - last_heartbeat_at), 0) END)::float8 AS seconds, (NOT node_api_receiving(120))::boolean AS deaf
FROM nodes WHERE node_id = $1;

-- Active nodes that are silent, and those in the other states for which no signal was recorded yet.
-- Silence proves something only while the node API has been able to receive a heartbeat.
-- name: SilentNodes :many
SELECT node_id FROM nodes
WHERE (state = 'active' OR silent_at IS NULL AND last_heartbeat_at IS NOT NULL)
  AND node_silent(state, state_since, last_heartbeat_at, now(), sqlc.arg(seconds)::float8)
  AND node_api_receiving(sqlc.arg(seconds)::float8)
ORDER BY node_id;

-- Locks those of the nodes that are still silent, as SilentNodes selects them. The order avoids
-- deadlocks with other such statements.
-- name: LockSilentNodes :many
SELECT node_id, state, silent_at, last_heartbeat_at FROM nodes
WHERE node_id = ANY (sqlc.arg(node_ids)::uuid[])
  AND (state = 'active' OR silent_at IS NULL AND last_heartbeat_at IS NOT NULL)
  AND node_silent(state, state_since, last_heartbeat_at, now(), sqlc.arg(seconds)::float8)
ORDER BY node_id FOR NO KEY UPDATE;

-- Locks those of the nodes that are offline or were silent.
-- name: LockReturnedNodes :many
SELECT node_id, state, silent_at FROM nodes
WHERE node_id = ANY (sqlc.arg(node_ids)::uuid[]) AND (state = 'offline' OR silent_at IS NOT NULL)
ORDER BY node_id FOR NO KEY UPDATE;

-- The caller holds the nodes' locks.
-- name: SetSilent :exec
UPDATE nodes SET silent_at = CASE WHEN sqlc.arg(silent)::boolean THEN now() END WHERE node_id = ANY (sqlc.arg(node_ids)::uuid[]);

-- The caller holds the nodes' locks.
-- name: SetStateOfNodes :exec
UPDATE nodes SET state = sqlc.arg(state), state_since = now() WHERE node_id = ANY (sqlc.arg(node_ids)::uuid[]);

-- Records that a replica of the node API receives requests. After a pause of more than
-- 30 s, in which no replica recorded that, the time from which it does starts again. Removes
-- the records of replicas that have stopped.
-- name: RecordReceiving :exec
WITH stopped AS (
    DELETE FROM node_api_replicas WHERE seen_at < now() - interval '1 hour' AND replica_id <> sqlc.arg(replica_id)::uuid
), replica AS (
    INSERT INTO node_api_replicas (replica_id, node_cas, seen_at) VALUES (sqlc.arg(replica_id)::uuid, sqlc.arg(node_cas)::text, now())
    ON CONFLICT ON CONSTRAINT node_api_replicas_pkey DO UPDATE SET node_cas = excluded.node_cas, seen_at = excluded.seen_at
)
INSERT INTO node_api AS a (receiving_since, seen_at) VALUES (now(), now())
ON CONFLICT ON CONSTRAINT node_api_pkey DO UPDATE SET seen_at = now(),
    receiving_since = CASE WHEN a.seen_at > now() - interval '30 seconds' THEN a.receiving_since ELSE now() END;

-- name: RecordPoll :execrows
UPDATE nodes SET polled_incarnation = incarnation
WHERE node_id = $1 AND incarnation = $2 AND polled_incarnation < incarnation;

-- Raises the node's counters to what its agent reported.
-- name: RaiseFloors :exec
UPDATE nodes SET task_seq_floor = greatest(task_seq_floor, sqlc.arg(task_seq)::bigint),
                 identity_sequence = greatest(identity_sequence, sqlc.arg(identity_sequence)::bigint)
WHERE node_id = sqlc.arg(node_id) AND incarnation = sqlc.arg(incarnation);

-- name: SetNodeSet :exec
UPDATE nodes SET set_version = sqlc.arg(set_version), set_hash = sqlc.arg(set_hash)
WHERE node_id = sqlc.arg(node_id) AND incarnation = sqlc.arg(incarnation)
  AND (set_version, set_hash) IS DISTINCT FROM (sqlc.arg(set_version), sqlc.arg(set_hash));

-- name: SetNodeCABundle :exec
INSERT INTO node_ca_bundles (node_id, incarnation, digest)
SELECT n.node_id, n.incarnation, sqlc.arg(digest)::text FROM nodes n
WHERE n.node_id = sqlc.arg(node_id) AND n.incarnation = sqlc.arg(incarnation)
ON CONFLICT ON CONSTRAINT node_ca_bundles_pkey DO UPDATE SET incarnation = excluded.incarnation, digest = excluded.digest;

-- A fetch reference counts as an issued bundle: it is what the operator gets.
-- name: Enrollment :one
SELECT n.incarnation,
    EXISTS (SELECT 1 FROM enrollment_tokens t WHERE t.node_id = n.node_id AND t.state = 'issued'
        AND (t.purpose = 'reissue' AND t.incarnation > n.incarnation OR t.bundle_purpose = 'reissue')) AS reissue_issued,
    EXISTS (SELECT 1 FROM enrollment_tokens t WHERE t.node_id = n.node_id AND (t.purpose IN ('enroll', 'reissue')
        AND t.incarnation = n.incarnation AND t.state <> 'voided'
        OR t.bundle_purpose = 'enroll' AND t.state = 'issued')) AS bundle_issued,
    EXISTS (SELECT 1 FROM enrollment_tokens t WHERE t.node_id = n.node_id AND t.purpose IN ('enroll', 'reissue')
        AND t.incarnation = n.incarnation AND t.state IN ('claimed', 'consumed')) AS token_claimed,
    (n.polled_incarnation = n.incarnation)::boolean AS polled, (n.state = 'removed')::boolean AS removed
FROM nodes n WHERE n.node_id = $1;

-- name: NodeCounts :many
SELECT state, sku, region_code AS region, count(*) AS nodes, coalesce(sum(gpus_total), 0)::bigint AS gpus,
       greatest(0, extract(epoch FROM now() - min(state_since)))::float8 AS oldest_seconds
FROM nodes GROUP BY state, sku, region_code ORDER BY nodes DESC, state, sku, region;

-- Counts the nodes by the version of their agent, which nodes choose. Without a heartbeat there is none.
-- name: AgentCounts :many
SELECT agent_version AS version, count(*) AS nodes FROM nodes
WHERE state <> 'removed' AND agent_version <> '' GROUP BY agent_version ORDER BY nodes DESC, version LIMIT sqlc.arg(max_rows)::bigint;

-- Of the open polls, given by node and incarnation, returns the nodes whose
-- identity was revoked or that have a task to dispatch. A task that was dispatched to
-- an earlier poll of the same agent process may have to be dispatched again: NextTask
-- decides. The earlier poll may take it although its agent has canceled that poll.
-- name: PollsToWake :many
SELECT DISTINCT n.node_id FROM nodes n
JOIN (SELECT unnest(sqlc.arg(node_ids)::uuid[]) AS node_id, unnest(sqlc.arg(incarnations)::bigint[]) AS incarnation) polls
    ON polls.node_id = n.node_id
WHERE n.state = 'removed' OR n.identity_locked_at IS NOT NULL OR n.incarnation <> polls.incarnation
   OR n.agent_fault = '' AND EXISTS (SELECT 1 FROM node_tasks t
              WHERE t.node_id = n.node_id AND t.finished_at IS NULL
                AND (t.status = 'pending' OR t.status = 'dispatched' AND t.poll_number > 0 AND t.lease_until > now()) AND t.incarnation = n.incarnation
                AND t.op_seq IN (0, n.op_seq) AND t.envelope_expires_at > now()
                AND t.cancel_requested_at IS NULL AND NOT t.cancel_seen);
