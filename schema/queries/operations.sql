-- name: GetOperation :one
SELECT operation_id, node_id, op_seq, action, status, phase, step, actor, run_id,
       coalesce(latest_run_id, run_id)::text AS newest_run_id, run_started_at, claim, ended_at
FROM operations WHERE operation_id = $1;

-- name: InsertOperation :exec
INSERT INTO operations (operation_id, node_id, op_seq, action, status, phase, document, actor, reason, correlation_id,
                        workflow_id, run_id, run_started_at, claim, started_at, via)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);

-- Ends the operation that a dead run left open on a node: the one that holds the node, or
-- its reissue.
-- name: SupersedeOperation :many
UPDATE operations SET status = 'failed', stuck = NULL, outcome = sqlc.arg(outcome), ended_at = now()
WHERE node_id = sqlc.arg(node_id) AND ended_at IS NULL AND (op_seq > 0) = sqlc.arg(holds)::boolean
RETURNING operation_id, action, correlation_id, claim;

-- The open operations of a node, the one that holds it first.
-- name: OpenOperations :many
SELECT operation_id, op_seq, action, status, phase, step, stuck, document, correlation_id, workflow_id,
       coalesce(latest_run_id, run_id)::text AS newest_run_id, run_started_at, claim, before_abandon
FROM operations WHERE node_id = $1 AND ended_at IS NULL ORDER BY op_seq DESC;

-- The state before the operation that held the node last.
-- name: StateBeforeOperation :one
SELECT coalesce(o.claim ->> 'prior', '')::text AS prior FROM operations o WHERE o.node_id = $1 AND o.op_seq = $2;

-- name: AdvanceOperation :exec
UPDATE operations SET status = $3, phase = $4, step = $5, stuck = $6, document = coalesce($7, document),
                      before_abandon = $8
WHERE operation_id = $1 AND op_seq = $2 AND ended_at IS NULL;

-- Records the run that took over after a reset of the claiming run.
-- name: SetOperationRun :exec
UPDATE operations SET latest_run_id = sqlc.arg(run_id)::text WHERE operation_id = sqlc.arg(operation_id);

-- name: FinishOperation :exec
UPDATE operations SET status = $3, outcome = $4, document = coalesce($5, document), stuck = NULL, ended_at = now()
WHERE operation_id = $1 AND op_seq = $2 AND ended_at IS NULL;

-- name: StuckCounts :many
SELECT phase, coalesce(stuck ->> 'reason', '')::text AS reason, count(*) AS operations FROM operations
WHERE stuck IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2;
