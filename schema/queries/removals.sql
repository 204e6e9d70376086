-- The removals to sign. The node's state proves nothing: its latest operation must be a
-- removal that completed, which the audit trail also says, and since then no identity was
-- issued. A removal without a document is signed once; one whose document ends soon is
-- signed again if the node asked during the last hour.
-- name: DueRemovals :many
SELECT n.node_id, n.incarnation, o.operation_id
FROM nodes n
JOIN operations o ON o.node_id = n.node_id AND o.op_seq = n.op_seq AND o.op_seq > 0
LEFT JOIN node_removals r ON r.node_id = n.node_id AND r.incarnation = n.incarnation AND r.operation_id = o.operation_id
WHERE n.state = 'removed' AND o.action = 'remove' AND o.status = 'completed'
  AND (r.node_id IS NULL OR r.expires_at < sqlc.arg(renew_before)::timestamptz AND EXISTS (
      SELECT FROM identity_refusals f
      WHERE f.node_id = n.node_id AND f.reason = 'node_removed' AND f.recorded_at > now() - interval '1 hour'))
  AND NOT EXISTS (SELECT FROM node_certificates c WHERE c.node_id = n.node_id AND c.issued_at > o.ended_at)
  AND NOT EXISTS (SELECT FROM enrollment_tokens t WHERE t.node_id = n.node_id AND t.claimed_at > o.ended_at)
  AND EXISTS (
      SELECT FROM audit_events a
      WHERE a.stream = n.node_id::text AND a.operation_id = o.operation_id::text
        AND a.action = 'nodes.remove' AND a.result = 'succeeded')
ORDER BY o.ended_at LIMIT sqlc.arg(most);

-- Stores the document if the removal still holds.
-- name: PutRemoval :execrows
INSERT INTO node_removals (node_id, incarnation, operation_id, document, expires_at)
SELECT n.node_id, n.incarnation, sqlc.arg(operation_id)::uuid, sqlc.arg(document)::bytea, sqlc.arg(expires_at)::timestamptz
FROM nodes n WHERE n.node_id = sqlc.arg(node_id) AND n.incarnation = sqlc.arg(incarnation) AND n.state = 'removed'
ON CONFLICT (node_id) DO UPDATE SET incarnation = excluded.incarnation, operation_id = excluded.operation_id,
    document = excluded.document, expires_at = excluded.expires_at;

-- name: NodeRemoval :one
SELECT r.document FROM node_removals r JOIN nodes n ON n.node_id = r.node_id AND n.incarnation = r.incarnation
WHERE r.node_id = $1 AND n.state = 'removed' AND r.expires_at > now();
