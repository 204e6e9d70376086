-- name: GetTaskByStep :one
SELECT task_id, node_id, incarnation, type, effect, params, seq, status, lease_epoch, result,
       owner_workflow_id, owner_run_id, owner_activity_id, (cancel_seen OR paused)::boolean AS heartbeat_seen,
       (cancel_requested_at IS NOT NULL)::boolean AS cancel_requested
FROM node_tasks WHERE operation_id = $1 AND step = $2;

-- name: GetFirstTask :one
SELECT task_id, node_id, incarnation, type, effect, params, seq, status, lease_epoch, result,
       owner_workflow_id, owner_run_id, owner_activity_id, (cancel_seen OR paused)::boolean AS heartbeat_seen,
       (cancel_requested_at IS NOT NULL)::boolean AS cancel_requested
FROM node_tasks WHERE operation_id = $1 AND type = $2 ORDER BY seq LIMIT 1;

-- Reads the facts that a new task's envelope contains, whether the task is already stored, and
-- the lock of the node's identity.
-- name: PlanTask :one
SELECT n.host, n.identity_locked_at, n.identity_lock_reason, n.identity_locked_by, n.identity_lock_note,
       n.op_seq AS node_op_seq, n.incarnation, coalesce(o.op_seq, -1)::bigint AS op_seq, o.ended_at,
       coalesce(o.phase, '') AS phase,
       EXISTS (SELECT 1 FROM node_tasks t
               WHERE t.operation_id = sqlc.arg(operation_id) AND t.step = sqlc.arg(step)) AS stored,
       (greatest(n.task_seq_floor, (SELECT max(t.seq) FROM node_tasks t WHERE t.node_id = n.node_id)) + 1)::bigint AS next_seq
FROM nodes n LEFT JOIN operations o ON o.node_id = n.node_id AND o.operation_id = sqlc.arg(operation_id)
WHERE n.node_id = sqlc.arg(node_id);

-- Stores a signed task with the seq in its envelope and its audit row. Stores
-- nothing if the operation does not hold the node, is abandoned or in an excluded phase, the step has a task
-- or another task has the seq. The statement locks the node first, as every write of an
-- operation does, and then the operation. After a wait it checks both rows again.
-- name: EnqueueTask :execrows
WITH node AS (
    SELECT n.node_id, o.actor, o.via FROM nodes n JOIN operations o ON o.operation_id = n.operation_id AND o.op_seq = n.op_seq
    WHERE n.node_id = sqlc.arg(node_id) AND n.incarnation = sqlc.arg(incarnation)
      AND n.op_seq = sqlc.arg(op_seq) AND n.op_seq > 0 AND n.operation_id = sqlc.arg(operation_id) AND o.status <> 'abandoned'
      AND NOT (o.phase = ANY(sqlc.arg(not_in_phases)::text[]))
    FOR NO KEY UPDATE OF n FOR SHARE OF o
), stored AS (
    INSERT INTO node_tasks (task_id, node_id, incarnation, seq, type, effect, params, operation_id, op_seq, step, deadline,
                            correlation_id, owner_workflow_id, owner_run_id, owner_activity_id,
                            envelope, envelope_expires_at, body_sha256, key_id)
    SELECT sqlc.arg(task_id)::uuid, node.node_id, sqlc.arg(incarnation)::bigint, sqlc.arg(seq)::bigint, sqlc.arg(type)::text,
           sqlc.arg(effect)::text, sqlc.narg(params)::jsonb, sqlc.arg(operation_id)::uuid, sqlc.arg(op_seq)::bigint,
           sqlc.arg(step)::text, sqlc.arg(deadline)::timestamptz, sqlc.arg(correlation_id)::text,
           sqlc.arg(owner_workflow_id)::text, sqlc.arg(owner_run_id)::text, sqlc.arg(owner_activity_id)::text,
           sqlc.arg(envelope)::bytea, sqlc.arg(deadline)::timestamptz, sqlc.arg(body_sha256)::text, sqlc.arg(key_id)::text
    FROM node
    ON CONFLICT DO NOTHING RETURNING node_tasks.task_id, node_tasks.node_id
)
SELECT audit_append(stored.node_id::text, node.actor, node.via, sqlc.arg(action)::text, stored.task_id::text, 'succeeded', '',
                    sqlc.arg(correlation_id)::text, sqlc.arg(operation_id)::uuid::text, sqlc.arg(detail)::jsonb)
FROM stored JOIN node USING (node_id);

-- A new owner has not recorded a heartbeat yet.
-- name: SetTaskOwner :exec
UPDATE node_tasks SET owner_workflow_id = $2, owner_run_id = $3, owner_activity_id = $4,
    cancel_seen = false, paused = false
WHERE task_id = $1 AND (owner_workflow_id, owner_run_id, owner_activity_id, cancel_seen, paused)
    IS DISTINCT FROM ($2, $3, $4, false, false);

-- name: VoidTasks :many
UPDATE node_tasks SET status = 'cancelled', finished_at = now()
WHERE node_id = sqlc.arg(node_id) AND finished_at IS NULL
  AND (sqlc.narg(operation_id)::uuid IS NULL OR operation_id = sqlc.narg(operation_id)::uuid)
  AND (sqlc.narg(task_id)::uuid IS NULL OR task_id = sqlc.narg(task_id)::uuid)
RETURNING task_id, operation_id, type, correlation_id;

-- Ends a task that was never dispatched. A dispatch that runs at the same time locks the
-- row first, and then the task has a lease, or it finds the task ended.
-- name: VoidUndispatched :execrows
UPDATE node_tasks SET status = 'cancelled', finished_at = now()
WHERE task_id = $1 AND lease_epoch = 0 AND finished_at IS NULL AND cancel_requested_at IS NULL;

-- Dispatches the oldest task that is pending or whose lease expired, of the
-- operation that holds the node or of none, with its audit row. A task that the
-- agent's journal holds continues under its lease: a new lease whose response is
-- lost would end the work. A destructive task that began under the expired lease is
-- not dispatched: the reclaimer marks it lost, and an operator decides. The node's
-- state and op_seq are those of the dispatch, which the lease grant repeats to the
-- agent. While the agent's heartbeats report a fault, nothing is dispatched, and neither is a
-- task whose key is none of those that nodes accept.
--
-- An agent process handles the response to one poll before it sends the next. So a
-- poll that does not list a task dispatched to an earlier poll of the same process
-- proves that the response was lost: the task is dispatched again at once, up to
-- max_dispatches times, after which the lease expires. A late poll (with a lower
-- number) proves nothing and gets no task that was dispatched since.
-- name: NextTask :one
WITH next AS (
    SELECT c.task_id, m.state, m.op_seq, (c.status = 'dispatched' AND c.lease_until >= now())::boolean AS response_lost
    FROM node_tasks c JOIN nodes m ON m.node_id = c.node_id
    WHERE c.node_id = sqlc.arg(node_id) AND c.incarnation = sqlc.arg(incarnation)
      AND c.op_seq IN (0, m.op_seq) AND m.agent_fault = '' AND m.identity_locked_at IS NULL
      AND c.finished_at IS NULL AND c.status <> 'lost'
      AND c.envelope_expires_at > now() AND c.cancel_requested_at IS NULL AND NOT c.cancel_seen
      AND (sqlc.narg(keys)::text[] IS NULL OR c.key_id = '' OR c.key_id = ANY (sqlc.narg(keys)::text[]))
      AND (c.status = 'pending' OR c.lease_until < now() AND (c.effect <> 'destructive' OR c.beat_at IS NULL)
           OR c.status = 'dispatched' AND c.holder = sqlc.arg(holder) AND c.poll_number > 0
              AND c.poll_number < sqlc.arg(poll_number) AND c.lease_epoch < sqlc.arg(max_dispatches))
      AND (c.lease_epoch = 0 OR NOT c.task_id::text = ANY (sqlc.arg(have)::text[])
           AND NOT (c.holder = sqlc.arg(holder) AND c.poll_number > sqlc.arg(poll_number)))
    ORDER BY c.seq LIMIT 1 FOR NO KEY UPDATE OF c SKIP LOCKED
), leased AS (
    UPDATE node_tasks t SET status = 'dispatched', lease_epoch = t.lease_epoch + 1, holder = sqlc.arg(holder),
        poll_number = sqlc.arg(poll_number), beat_at = NULL,
        lease_until = now() + make_interval(secs => sqlc.arg(lease_seconds)::float8),
        dispatched_at = coalesce(t.dispatched_at, now())
    FROM next WHERE t.task_id = next.task_id
    RETURNING t.task_id, t.node_id, t.type, t.operation_id, t.correlation_id, t.envelope, t.created_at, t.lease_epoch, t.holder,
        t.lease_until::timestamptz AS lease_until, next.state AS node_state, next.op_seq AS node_op_seq, next.response_lost
)
SELECT task_id, type, envelope, created_at, lease_epoch, lease_until, now()::timestamptz AS server_time, node_state, node_op_seq,
    audit_append(node_id::text, sqlc.arg(actor)::text, '', sqlc.arg(action)::text, task_id::text, 'succeeded',
        CASE WHEN response_lost THEN 'response_lost' ELSE '' END, correlation_id, operation_id::text,
        jsonb_strip_nulls(jsonb_build_object('holder', nullif(holder, ''), 'lease', lease_epoch::text, 'type', type)))::bigint AS audited
FROM leased;

-- Lists the held tasks that were canceled, or whose cancel was requested.
-- name: CanceledTasks :many
SELECT task_id FROM node_tasks
WHERE node_id = sqlc.arg(node_id) AND task_id = ANY (sqlc.arg(held)::uuid[])
  AND (status = 'cancelled' OR cancel_requested_at IS NOT NULL OR cancel_seen)
ORDER BY seq;

-- Extends the lease of a task and returns the task's previous status. The holder of
-- the newest lease may also continue a task that was requeued or lost and not
-- dispatched since. The first progress of a destructive task asks whether the task may
-- begin. After the lease ended, it may as long as it could be dispatched again: not once
-- it is lost or its envelope expired. Changes no indexed column, so a progress updates
-- the row in place.
-- name: ExtendLease :one
WITH held AS (
    SELECT h.task_id, h.status FROM node_tasks h
    WHERE h.task_id = sqlc.arg(task_id) AND h.node_id = sqlc.arg(node_id) AND h.incarnation = sqlc.arg(incarnation)
      AND h.lease_epoch = sqlc.arg(lease_epoch) AND h.lease_epoch > 0 AND h.finished_at IS NULL
      AND (h.lease_until >= now() OR h.beat_at IS NOT NULL OR h.effect <> 'destructive'
           OR h.status <> 'lost' AND h.envelope_expires_at > now())
    FOR NO KEY UPDATE
)
UPDATE node_tasks t SET status = 'running', progress = sqlc.arg(progress), lost_at = NULL,
    lease_until = now() + make_interval(secs => sqlc.arg(lease_seconds)::float8),
    beat_at = CASE WHEN t.beat_at > now() - make_interval(secs => sqlc.arg(heartbeat_seconds)::float8) THEN t.beat_at ELSE now() END
FROM held WHERE t.task_id = held.task_id
RETURNING held.status::text AS was, t.lease_until::timestamptz AS lease_until, (t.beat_at = now())::boolean AS heartbeat_due,
    (t.cancel_requested_at IS NOT NULL OR t.cancel_seen)::boolean AS cancel, t.paused, t.type, t.step, t.operation_id, t.correlation_id,
    t.owner_workflow_id, t.owner_run_id, t.owner_activity_id;

-- name: SetActivityState :exec
UPDATE node_tasks SET cancel_seen = sqlc.arg(cancel), paused = sqlc.arg(paused)
WHERE task_id = sqlc.arg(task_id) AND (cancel_seen, paused) IS DISTINCT FROM (sqlc.arg(cancel)::boolean, sqlc.arg(paused)::boolean);

-- Ends a task that the caller locked, with its message for the relay if an activity waits
-- for it.
-- name: FinishTask :exec
WITH done AS (
    UPDATE node_tasks t SET status = sqlc.arg(status), result = sqlc.arg(result), output_tail = sqlc.arg(output_tail),
        finished_at = now(), lost_at = NULL, result_serial = sqlc.narg(result_serial), result_key = sqlc.narg(result_key),
        result_body = sqlc.narg(result_body), result_signature = sqlc.narg(result_signature)
    WHERE t.task_id = sqlc.arg(task_id)
    RETURNING t.task_id, t.owner_workflow_id
)
INSERT INTO outbox (task_id, workflow_id) SELECT done.task_id, done.owner_workflow_id FROM done WHERE done.owner_workflow_id <> ''
ON CONFLICT ON CONSTRAINT outbox_task_key
DO UPDATE SET attempts = 0, next_try_at = now(), created_at = now(), orphaned_at = NULL, last_error = '', redelivered_at = NULL;

-- Locks the task's node and then the task. node_id, when set, must be the task's. A
-- destructive task is repeatable if there was no progress under its first lease: then it
-- did not begin. Only the first lease counts, so that a node that never begins its task
-- is noticed.
-- name: LockTask :one
WITH node AS MATERIALIZED (
    SELECT n.node_id, n.host, n.cordoned, n.workloads FROM nodes n
    WHERE n.node_id = (SELECT o.node_id FROM node_tasks o WHERE o.task_id = sqlc.arg(task_id)
                       AND (sqlc.narg(node_id)::uuid IS NULL OR o.node_id = sqlc.narg(node_id)::uuid))
    FOR NO KEY UPDATE
)
SELECT t.task_id, t.node_id, t.incarnation, t.type, t.status, t.step, t.lease_epoch, t.operation_id,
       t.correlation_id, t.owner_workflow_id, t.owner_run_id, t.owner_activity_id, t.result, t.cancel_reason, t.body_sha256,
       node.host, node.cordoned, node.workloads,
       (t.envelope_expires_at <= now())::boolean AS expired,
       (t.cancel_requested_at IS NOT NULL)::boolean AS canceled,
       (t.effect <> 'destructive' OR t.lease_epoch = 1 AND t.beat_at IS NULL)::boolean AS repeatable,
       (t.status IN ('dispatched', 'running')
        AND t.lease_until < now() - make_interval(secs => sqlc.arg(grace_seconds)::float8))::boolean AS stale
FROM node JOIN node_tasks t ON t.node_id = node.node_id WHERE t.task_id = sqlc.arg(task_id) FOR NO KEY UPDATE OF t;

-- name: SetTaskStatus :exec
UPDATE node_tasks SET status = sqlc.arg(status)::text, lost_at = CASE WHEN sqlc.arg(status)::text = 'lost' THEN now() END
WHERE task_id = sqlc.arg(task_id);

-- name: EndTask :exec
UPDATE node_tasks SET status = 'cancelled', result = $2, finished_at = now(), cancel_reason = $3, cancel_requested_at = now()
WHERE task_id = $1;

-- name: RequestTaskCancel :exec
UPDATE node_tasks SET cancel_reason = $2, cancel_requested_at = now() WHERE task_id = $1;

-- Lists the tasks to reclaim: expired leases past the grace, unless the node API could not
-- receive their extension, tasks whose operation or rotation ended or is missing, results that were
-- not delivered in time. MATERIALIZED keeps the planner
-- from walking finished tasks for the order.
-- name: ReclaimableTasks :many
WITH unended AS MATERIALIZED (
    SELECT task_id, node_id, operation_id, status, lease_until FROM node_tasks WHERE finished_at IS NULL
)
SELECT t.task_id, t.node_id FROM unended t LEFT JOIN operations o ON o.operation_id = t.operation_id
WHERE t.task_id > sqlc.arg(after)::uuid
  AND (o.operation_id IS NULL AND NOT EXISTS (SELECT 1 FROM rotations r WHERE r.rotation_id = t.operation_id AND r.ended_at IS NULL)
       OR o.ended_at IS NOT NULL OR o.status = 'abandoned' OR t.status IN ('dispatched', 'running')
       AND t.lease_until < now() - make_interval(secs => sqlc.arg(grace_seconds)::float8)
       AND node_api_receiving(sqlc.arg(return_seconds)::float8))
UNION
SELECT t.task_id, t.node_id FROM outbox b JOIN node_tasks t ON t.task_id = b.task_id
WHERE b.task_id > sqlc.arg(after)::uuid AND b.orphaned_at IS NULL
  AND coalesce(b.redelivered_at, b.created_at) < now() - make_interval(secs => sqlc.arg(overdue_seconds)::float8)
ORDER BY task_id LIMIT sqlc.arg(max_rows);

-- name: ResultProof :one
SELECT result_serial, result_key, result_body, result_signature FROM node_tasks
WHERE task_id = sqlc.arg(task_id) AND result_serial IS NOT NULL;

-- name: TaskLeases :many
SELECT status, count(*) AS tasks, greatest(0, extract(epoch FROM now() - min(created_at)))::float8 AS oldest_seconds FROM node_tasks
WHERE finished_at IS NULL GROUP BY status ORDER BY status;
