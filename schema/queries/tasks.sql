-- name: GetTaskByStep :one
SELECT task_id, node_id, incarnation, type, effect, params, seq, status, (envelope IS NOT NULL)::boolean AS signed,
       created_at, lease_epoch, result
FROM node_tasks WHERE operation_id = $1 AND step = $2;

-- name: NextTaskSeq :one
UPDATE nodes SET task_seq = task_seq + 1 WHERE node_id = $1 RETURNING task_seq;

-- name: InsertTask :one
INSERT INTO node_tasks (task_id, node_id, incarnation, seq, type, effect, params, operation_id, op_seq, step, deadline,
                        correlation_id, owner_workflow_id, owner_run_id, owner_activity_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
RETURNING created_at;

-- name: SetTaskOwner :exec
UPDATE node_tasks SET owner_workflow_id = $2, owner_run_id = $3, owner_activity_id = $4 WHERE task_id = $1;

-- name: AttachEnvelope :one
UPDATE node_tasks SET envelope = $2, envelope_expires_at = $3, attached_at = now()
WHERE task_id = $1 AND envelope IS NULL AND status = 'pending'
RETURNING node_id;

-- name: TaskSigned :one
SELECT (envelope IS NOT NULL)::boolean FROM node_tasks WHERE task_id = $1;

-- name: VoidTasks :many
UPDATE node_tasks SET status = 'cancelled', finished_at = now()
WHERE node_id = sqlc.arg(node_id) AND status IN ('pending', 'dispatched', 'running')
  AND (sqlc.narg(operation_id)::uuid IS NULL OR operation_id = sqlc.narg(operation_id)::uuid)
RETURNING task_id, operation_id, type, correlation_id;

-- Hands over the oldest task that waits, or whose lease ran out while the
-- node's journal knows nothing of it. One statement decides.
-- name: NextTask :one
UPDATE node_tasks SET status = 'dispatched', lease_epoch = lease_epoch + 1,
    lease_until = now() + make_interval(secs => sqlc.arg(lease_seconds)::float8),
    dispatched_at = coalesce(dispatched_at, now())
WHERE task_id = (
    SELECT t.task_id FROM node_tasks t
    WHERE t.node_id = sqlc.arg(node_id) AND t.incarnation = sqlc.arg(incarnation)
      AND t.envelope_expires_at > now()
      AND (t.status = 'pending'
           OR (t.status IN ('dispatched', 'running') AND t.lease_until < now()
               AND NOT t.task_id::text = ANY (sqlc.arg(have)::text[])))
    ORDER BY t.seq LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING task_id, type, operation_id, correlation_id, envelope, created_at, lease_epoch,
    lease_until::timestamptz AS lease_until, now()::timestamptz AS server_time;

-- name: ExtendLease :one
UPDATE node_tasks SET status = 'running', progress = sqlc.arg(progress),
    lease_until = now() + make_interval(secs => sqlc.arg(lease_seconds)::float8)
WHERE task_id = sqlc.arg(task_id) AND node_id = sqlc.arg(node_id) AND lease_epoch = sqlc.arg(lease_epoch)
  AND incarnation = sqlc.arg(incarnation) AND status IN ('dispatched', 'running')
RETURNING lease_until::timestamptz AS lease_until;

-- name: TaskExists :one
SELECT EXISTS (SELECT 1 FROM node_tasks WHERE task_id = $1 AND node_id = $2);

-- name: FinishTask :execrows
UPDATE node_tasks SET status = sqlc.arg(status), result = sqlc.arg(result), finished_at = now()
WHERE task_id = sqlc.arg(task_id) AND node_id = sqlc.arg(node_id) AND lease_epoch = sqlc.arg(lease_epoch)
  AND incarnation = sqlc.arg(incarnation) AND status IN ('dispatched', 'running');

-- name: GetTask :one
SELECT task_id, type, status, lease_epoch, operation_id, correlation_id, owner_workflow_id, result
FROM node_tasks WHERE task_id = $1 AND node_id = $2;

-- name: TaskLeases :many
SELECT status, count(*) AS tasks FROM node_tasks
WHERE status IN ('pending', 'dispatched', 'running') GROUP BY status ORDER BY status;
