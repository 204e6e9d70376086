-- Of the nodes and incarnations asked for, those whose identity is over: one
-- question for every open poll of a process.
-- name: Fenced :many
SELECT DISTINCT n.node_id FROM nodes n
JOIN (SELECT unnest(sqlc.arg(node_ids)::uuid[]) AS node_id, unnest(sqlc.arg(incarnations)::bigint[]) AS incarnation) polled
    ON polled.node_id = n.node_id
WHERE n.state = 'removed' OR n.identity_locked_at IS NOT NULL OR n.incarnation <> polled.incarnation;
