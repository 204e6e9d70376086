-- name: GetTaskByStep :one
SELECT task_id, node_id, incarnation, type, effect, params, seq, status, (envelope IS NOT NULL)::boolean AS signed,
       created_at, lease_epoch, result
FROM node_tasks WHERE operation_id = $1 AND step = $2;

-- What a new task needs to be signed before it is stored, and whether it is.
-- name: PlanTask :one
SELECT n.op_seq AS node_op_seq, n.incarnation, n.task_seq, coalesce(o.op_seq, -1)::bigint AS op_seq, o.ended_at,
       EXISTS (SELECT 1 FROM node_tasks t
               WHERE t.operation_id = sqlc.arg(operation_id) AND t.step = sqlc.arg(step)) AS stored
FROM nodes n LEFT JOIN operations o ON o.node_id = n.node_id AND o.operation_id = sqlc.arg(operation_id)
WHERE n.node_id = sqlc.arg(node_id);

-- Locks the node for a look at why a task was not stored. After a wait only the
-- node's own columns are fresh; of the operation it reads what never changes.
-- name: LockNodeForTask :one
SELECT n.op_seq AS node_op_seq, n.operation_id, coalesce(o.op_seq, -1)::bigint AS op_seq
FROM nodes n LEFT JOIN operations o ON o.node_id = n.node_id AND o.operation_id = sqlc.arg(operation_id)
WHERE n.node_id = sqlc.arg(node_id) FOR NO KEY UPDATE OF n;

-- Stores a signed task with the seq it was signed with and its audit row, and
-- wakes the node's poll; nothing when the operation does not hold the node, when
-- the step has a task or when another task has the seq. The update locks the
-- node before the rest, and after a wait it looks at the row once more: all of
-- the fence is in the node's own columns, and of the operation it reads what never
-- changes.
-- name: EnqueueTask :execrows
WITH node AS (
    UPDATE nodes n SET task_seq = sqlc.arg(seq) FROM operations o
    WHERE n.node_id = sqlc.arg(node_id) AND n.task_seq < sqlc.arg(seq) AND n.incarnation = sqlc.arg(incarnation)
      AND n.op_seq = sqlc.arg(op_seq) AND n.op_seq > 0 AND n.operation_id = sqlc.arg(operation_id)
      AND o.operation_id = n.operation_id AND o.op_seq = n.op_seq
    RETURNING n.node_id, o.actor
), stored AS (
    INSERT INTO node_tasks (task_id, node_id, incarnation, seq, type, effect, params, operation_id, op_seq, step, deadline,
                            correlation_id, owner_workflow_id, owner_run_id, owner_activity_id,
                            envelope, envelope_expires_at, attached_at, body_sha256)
    SELECT sqlc.arg(task_id)::uuid, node.node_id, sqlc.arg(incarnation)::bigint, sqlc.arg(seq)::bigint, sqlc.arg(type)::text,
           sqlc.arg(effect)::text, sqlc.narg(params)::jsonb, sqlc.arg(operation_id)::uuid, sqlc.arg(op_seq)::bigint,
           sqlc.arg(step)::text, sqlc.narg(deadline)::timestamptz, sqlc.arg(correlation_id)::text,
           sqlc.arg(owner_workflow_id)::text, sqlc.arg(owner_run_id)::text, sqlc.arg(owner_activity_id)::text,
           sqlc.arg(envelope)::bytea, sqlc.narg(deadline)::timestamptz, now(), sqlc.arg(body_sha256)::text
    FROM node
    ON CONFLICT DO NOTHING RETURNING node_tasks.task_id, node_tasks.node_id
)
SELECT audit_append(stored.node_id::text, node.actor, sqlc.arg(action)::text, stored.task_id::text, 'succeeded', '',
                    sqlc.arg(correlation_id)::text, sqlc.arg(operation_id)::uuid::text, sqlc.arg(detail)::text),
       pg_notify(sqlc.arg(channel)::text, stored.node_id::text)
FROM stored JOIN node USING (node_id);

-- A new owner has told nothing yet.
-- name: SetTaskOwner :exec
UPDATE node_tasks SET owner_workflow_id = $2, owner_run_id = $3, owner_activity_id = $4,
    told_cancel = false, paused = false
WHERE task_id = $1 AND (owner_workflow_id, owner_run_id, owner_activity_id, told_cancel, paused)
    IS DISTINCT FROM ($2, $3, $4, false, false);

-- For tasks that an older version stored before they were signed.
-- name: AttachEnvelope :execrows
UPDATE node_tasks SET envelope = $2, envelope_expires_at = $3, attached_at = now()
WHERE task_id = $1 AND envelope IS NULL AND status = 'pending';

-- name: VoidTasks :many
UPDATE node_tasks SET status = 'cancelled', finished_at = now()
WHERE node_id = sqlc.arg(node_id) AND finished_at IS NULL
  AND (sqlc.narg(operation_id)::uuid IS NULL OR operation_id = sqlc.narg(operation_id)::uuid)
  AND (sqlc.narg(task_id)::uuid IS NULL OR task_id = sqlc.narg(task_id)::uuid)
RETURNING task_id, operation_id, type, correlation_id;

-- Hands over the oldest task that waits, or whose lease ran out, of the operation
-- that holds the node or of none, with its audit row. One that the node's journal
-- holds goes on under the lease it has: a newer one whose answer is lost would end
-- its work. One statement decides; what it locks is as new as the lock, and of
-- the node it reads what each hand-over's grant repeats to the agent.
--
-- A process deals with the answer to one poll before it sends the next, so a poll
-- whose list lacks what an earlier one was handed shows that the answer was lost: it is handed
-- over again at once, three times at most, so that a node which does not take it
-- lets its lease end. An earlier poll that is late proves nothing and gets nothing
-- that was handed over since.
-- name: NextTask :one
WITH next AS (
    SELECT c.task_id, m.state, m.op_seq, (c.status = 'dispatched' AND c.lease_until >= now())::boolean AS unheard
    FROM node_tasks c JOIN nodes m ON m.node_id = c.node_id
    WHERE c.node_id = sqlc.arg(node_id) AND c.incarnation = sqlc.arg(incarnation)
      AND c.op_seq IN (0, m.op_seq)
      AND c.finished_at IS NULL AND c.status <> 'lost'
      AND c.envelope_expires_at > now() AND c.cancel_requested_at IS NULL AND NOT c.told_cancel
      AND (c.status = 'pending' OR c.lease_until < now()
           OR c.status = 'dispatched' AND c.holder = sqlc.arg(holder) AND c.poll_number > 0
              AND c.poll_number < sqlc.arg(poll_number) AND c.lease_epoch <= 3)
      AND (c.lease_epoch = 0 OR NOT c.task_id::text = ANY (sqlc.arg(have)::text[])
           AND NOT (c.holder = sqlc.arg(holder) AND c.poll_number > sqlc.arg(poll_number)))
    ORDER BY c.seq LIMIT 1 FOR NO KEY UPDATE OF c SKIP LOCKED
), taken AS (
    UPDATE node_tasks t SET status = 'dispatched', lease_epoch = t.lease_epoch + 1, holder = sqlc.arg(holder),
        poll_number = sqlc.arg(poll_number), beat_at = NULL,
        lease_until = now() + make_interval(secs => sqlc.arg(lease_seconds)::float8),
        dispatched_at = coalesce(t.dispatched_at, now())
    FROM next WHERE t.task_id = next.task_id
    RETURNING t.task_id, t.node_id, t.type, t.operation_id, t.correlation_id, t.envelope, t.created_at, t.lease_epoch, t.holder,
        t.lease_until::timestamptz AS lease_until, next.state AS node_state, next.op_seq AS node_op_seq, next.unheard
)
SELECT task_id, type, envelope, created_at, lease_epoch, lease_until, now()::timestamptz AS server_time, node_state, node_op_seq,
    audit_append(node_id::text, sqlc.arg(actor)::text, sqlc.arg(action)::text, task_id::text, 'succeeded',
        CASE WHEN unheard THEN 'answer_lost' ELSE '' END, correlation_id, operation_id::text,
        '{' || CASE WHEN holder = '' THEN '' ELSE '"holder":' || to_json(holder)::text || ',' END
            || '"lease":"' || lease_epoch || '","type":' || to_json(type)::text || '}')::bigint AS audited
FROM taken;

-- Which tasks that a node holds are not wanted any more.
-- name: TaskNews :many
SELECT task_id FROM node_tasks
WHERE node_id = sqlc.arg(node_id) AND task_id = ANY (sqlc.arg(have)::uuid[])
  AND (status = 'cancelled' OR cancel_requested_at IS NOT NULL OR told_cancel)
ORDER BY seq;

-- Touches no indexed column once the task runs, so that a progress rewrites the
-- row in place.
-- name: ExtendLease :one
UPDATE node_tasks SET status = 'running', progress = sqlc.arg(progress),
    lease_until = now() + make_interval(secs => sqlc.arg(lease_seconds)::float8),
    beat_at = CASE WHEN beat_at > now() - make_interval(secs => sqlc.arg(beat_seconds)::float8) THEN beat_at ELSE now() END
WHERE task_id = sqlc.arg(task_id) AND node_id = sqlc.arg(node_id) AND lease_epoch = sqlc.arg(lease_epoch)
  AND incarnation = sqlc.arg(incarnation) AND status IN ('dispatched', 'running')
RETURNING lease_until::timestamptz AS lease_until, (beat_at = now())::boolean AS beat,
    (cancel_requested_at IS NOT NULL OR told_cancel)::boolean AS cancel, paused,
    owner_workflow_id, owner_run_id, owner_activity_id;

-- A task that was given up, or that is offered again and was not taken yet, goes
-- on under the lease it had.
-- name: TakeUpTask :one
UPDATE node_tasks SET status = 'running', lost_at = NULL
WHERE task_id = $1 AND lease_epoch = $2 AND lease_epoch > 0 AND status IN ('pending', 'lost')
RETURNING owner_workflow_id;

-- name: ToldTask :exec
UPDATE node_tasks SET told_cancel = sqlc.arg(cancel), paused = sqlc.arg(paused)
WHERE task_id = sqlc.arg(task_id) AND (told_cancel, paused) IS DISTINCT FROM (sqlc.arg(cancel)::boolean, sqlc.arg(paused)::boolean);

-- Stores a result with its audit row and its message, and wakes the relays; an
-- empty channel wakes none, for a process that has one itself. With hold_seconds
-- the message is taken already, by the process that stores it. The task's own
-- columns are the fence, so nobody need hold more than it.
-- name: FinishTask :one
WITH done AS (
    UPDATE node_tasks t SET status = sqlc.arg(status), result = sqlc.arg(result), output_tail = sqlc.arg(output_tail),
        finished_at = now(), result_serial = sqlc.narg(result_serial), result_key = sqlc.narg(result_key),
        result_body = sqlc.narg(result_body), result_signature = sqlc.narg(result_signature)
    WHERE t.task_id = sqlc.arg(task_id) AND t.node_id = sqlc.arg(node_id) AND t.incarnation = sqlc.arg(incarnation)
      AND t.lease_epoch = sqlc.arg(lease_epoch) AND t.lease_epoch > 0
      AND t.status = ANY (sqlc.arg(open)::text[]) AND NOT t.type = ANY (sqlc.arg(other_types)::text[])
      AND sqlc.arg(body_sha256)::text IN ('', t.body_sha256)
    RETURNING t.task_id, t.node_id, t.type, t.operation_id, t.correlation_id, t.owner_workflow_id, t.owner_run_id, t.owner_activity_id
), message AS (
    INSERT INTO outbox (task_id, workflow_id, next_try_at)
    SELECT done.task_id, done.owner_workflow_id, now() + make_interval(secs => sqlc.arg(hold_seconds)::float8) FROM done
    ON CONFLICT ON CONSTRAINT outbox_task_key
    DO UPDATE SET attempts = 0, next_try_at = excluded.next_try_at, created_at = now(), orphaned_at = NULL, last_error = '', nudged_at = NULL
    RETURNING outbox.task_id, outbox.id, outbox.created_at
)
SELECT done.type, message.id AS message_id, message.created_at, done.owner_workflow_id, done.owner_run_id, done.owner_activity_id,
    audit_append(done.node_id::text, sqlc.arg(actor)::text, sqlc.arg(action)::text, done.task_id::text, sqlc.arg(audit_result)::text,
        sqlc.arg(reason)::text, done.correlation_id, done.operation_id::text,
        '{' || CASE WHEN sqlc.arg(message)::text = '' THEN '' ELSE '"message":' || to_json(sqlc.arg(message)::text)::text || ',' END
            || coalesce('"serial":' || to_json(sqlc.narg(result_serial)::text)::text || ',', '') || '"type":' || to_json(done.type)::text
            || CASE WHEN sqlc.arg(was)::text = '' THEN '' ELSE ',"was":' || to_json(sqlc.arg(was)::text)::text END || '}')::bigint AS audited,
    (CASE WHEN sqlc.arg(channel)::text <> '' THEN pg_notify(sqlc.arg(channel)::text, '')::text ELSE '' END)::text AS woken
FROM done JOIN message ON message.task_id = done.task_id;

-- Locks the task; whoever changes more of it holds its node's lock already.
-- name: LockTask :one
SELECT t.task_id, t.node_id, t.incarnation, t.type, t.effect, t.status, t.step, t.lease_epoch, t.operation_id,
       t.correlation_id, t.owner_workflow_id, t.result, t.cancel_reason, t.envelope,
       (t.envelope_expires_at <= now())::boolean AS expired,
       (t.cancel_requested_at IS NOT NULL)::boolean AS cancelled,
       (t.status IN ('dispatched', 'running')
        AND t.lease_until < now() - make_interval(secs => sqlc.arg(grace_seconds)::float8))::boolean AS stale
FROM node_tasks t WHERE t.task_id = sqlc.arg(task_id) FOR NO KEY UPDATE;

-- name: NodeOfTask :one
SELECT node_id FROM node_tasks WHERE task_id = $1;

-- name: SetTaskStatus :exec
UPDATE node_tasks SET status = sqlc.arg(status), lost_at = CASE WHEN sqlc.arg(status) = 'lost' THEN now() END
WHERE task_id = sqlc.arg(task_id);

-- name: EndTask :exec
UPDATE node_tasks SET status = 'cancelled', result = $2, finished_at = now(), cancel_reason = $3, cancel_requested_at = now()
WHERE task_id = $1;

-- name: RequestTaskCancel :exec
UPDATE node_tasks SET cancel_reason = $2, cancel_requested_at = now() WHERE task_id = $1;

-- What the reclaimer should look at, by task: leases that ended long enough ago,
-- tasks whose operation is over, results that wait too long for their delivery.
-- Materialized, so that no plan reads what is over for the sake of the order.
-- name: ReclaimableTasks :many
WITH unended AS MATERIALIZED (
    SELECT task_id, node_id, operation_id, status, lease_until FROM node_tasks WHERE finished_at IS NULL
)
SELECT t.task_id, t.node_id FROM unended t JOIN operations o ON o.operation_id = t.operation_id
WHERE t.task_id > sqlc.arg(after)::uuid
  AND (o.ended_at IS NOT NULL OR t.status IN ('dispatched', 'running')
       AND t.lease_until < now() - make_interval(secs => sqlc.arg(grace_seconds)::float8))
UNION
SELECT t.task_id, t.node_id FROM outbox b JOIN node_tasks t ON t.task_id = b.task_id
WHERE b.task_id > sqlc.arg(after)::uuid AND b.orphaned_at IS NULL
  AND coalesce(b.nudged_at, b.created_at) < now() - make_interval(secs => sqlc.arg(nudge_seconds)::float8)
ORDER BY task_id LIMIT sqlc.arg(max_rows);

-- name: GetTask :one
SELECT t.task_id, t.node_id, n.host, t.type, t.effect, t.status, t.step, t.seq, t.incarnation, t.operation_id,
       t.owner_workflow_id, t.owner_run_id, t.correlation_id, t.lease_epoch, t.holder, t.lease_until, t.progress,
       t.paused, t.deadline, t.created_at, t.dispatched_at, t.finished_at, t.lost_at, t.cancel_reason, t.result, t.output_tail
FROM node_tasks t JOIN nodes n ON n.node_id = t.node_id WHERE t.task_id = $1;

-- name: ResultProof :one
SELECT result_serial, result_key, result_body, result_signature FROM node_tasks
WHERE task_id = sqlc.arg(task_id) AND result_serial IS NOT NULL;

-- name: ListTasks :many
SELECT t.task_id, t.node_id, n.host, t.type, t.effect, t.status, t.step, t.seq, t.incarnation, t.operation_id,
       t.owner_workflow_id, t.owner_run_id, t.correlation_id, t.lease_epoch, t.holder, t.lease_until, t.progress,
       t.paused, t.deadline, t.created_at, t.dispatched_at, t.finished_at, t.lost_at, t.cancel_reason, t.result,
       ''::text AS output_tail
FROM node_tasks t JOIN nodes n ON n.node_id = t.node_id
WHERE (sqlc.narg(node_id)::uuid IS NULL OR t.node_id = sqlc.narg(node_id)::uuid)
  AND (NOT sqlc.arg(open)::boolean OR t.finished_at IS NULL)
ORDER BY t.created_at DESC, t.seq DESC LIMIT sqlc.arg(max_rows);

-- name: TaskLeases :many
SELECT status, count(*) AS tasks FROM node_tasks
WHERE finished_at IS NULL GROUP BY status ORDER BY status;

-- name: LostTasks :one
SELECT count(*) FROM node_tasks WHERE finished_at IS NULL AND status = 'lost';
