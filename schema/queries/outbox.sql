-- A task has at most one message. The relay reads the status from the task's row.
-- name: InsertResultMessage :exec
INSERT INTO outbox (task_id, workflow_id) VALUES ($1, $2)
ON CONFLICT ON CONSTRAINT outbox_task_key
DO UPDATE SET attempts = 0, next_try_at = now(), created_at = now(), orphaned_at = NULL, last_error = '', redelivered_at = NULL;

-- name: DropResultMessage :exec
DELETE FROM outbox WHERE task_id = $1;

-- name: RedeliverOutbox :execrows
UPDATE outbox SET next_try_at = now(), redelivered_at = now()
WHERE task_id = sqlc.arg(task_id) AND orphaned_at IS NULL
  AND coalesce(redelivered_at, created_at) < now() - make_interval(secs => sqlc.arg(overdue_seconds)::float8);

-- name: InsertEventMessage :exec
INSERT INTO outbox (workflow_id, event) VALUES (sqlc.arg(workflow_id), sqlc.arg(event));

-- Removes delivered messages and reserves due ones for hold_seconds, so that
-- delivery holds no lock; the messages of a relay that died become due again. A
-- delivered message that was rewritten meanwhile has another created_at and stays.
-- The commit is not durable: the relay repeats what a crash of the server undoes.
-- name: TakeOutbox :many
WITH delivered AS (
    SELECT unnest(sqlc.arg(delivered_ids)::bigint[])::bigint AS id,
           unnest(sqlc.arg(delivered_created)::timestamptz[])::timestamptz AS created_at
    FROM set_config('synchronous_commit', 'off', true)
), gone AS (
    DELETE FROM outbox o USING delivered d WHERE o.id = d.id AND o.created_at = d.created_at
), due AS (
    SELECT id FROM outbox o
    WHERE orphaned_at IS NULL AND next_try_at <= now()
      AND NOT EXISTS (SELECT 1 FROM delivered d WHERE o.id = d.id AND o.created_at = d.created_at)
    ORDER BY id LIMIT sqlc.arg(max_rows) FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE outbox o SET next_try_at = now() + make_interval(secs => sqlc.arg(hold_seconds)::float8) FROM due WHERE o.id = due.id
    RETURNING o.id, o.task_id, o.workflow_id, o.event, o.attempts, o.created_at, o.next_try_at
)
SELECT taken.id, taken.workflow_id, taken.event, taken.attempts, taken.created_at, taken.next_try_at, taken.task_id,
       t.owner_workflow_id, t.owner_run_id, t.owner_activity_id, coalesce(t.status, '')::text AS task_status
FROM taken LEFT JOIN node_tasks t ON t.task_id = taken.task_id ORDER BY taken.id;

-- Makes reserved messages due. A message that another relay took or failed to deliver
-- since has another next_try_at and keeps it.
-- name: ReleaseOutbox :exec
UPDATE outbox o SET next_try_at = now()
FROM (SELECT unnest(sqlc.arg(ids)::bigint[])::bigint AS id,
             unnest(sqlc.arg(reserved_until)::timestamptz[])::timestamptz AS reserved_until) r
WHERE o.id = r.id AND o.next_try_at = r.reserved_until;

-- name: OrphanOutbox :exec
UPDATE outbox SET orphaned_at = coalesce(orphaned_at, now()), last_error = $2 WHERE id = $1;

-- Backs off 1 s, 2 s, 4 s and so on, up to a minute.
-- name: FailOutbox :exec
UPDATE outbox SET attempts = attempts + 1, last_error = $2,
    next_try_at = now() + make_interval(secs => least(60, 2 ^ least(attempts, 6)))
WHERE id = $1;

-- The age in seconds of the oldest message that failed and is still to be
-- delivered, for the gauge; 0 without one.
-- name: OutboxAge :one
SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS seconds
FROM outbox WHERE orphaned_at IS NULL AND attempts > 0;
