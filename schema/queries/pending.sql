-- What storing a certificate depends on: the sequence it is stored under, or -1,
-- and whether its key still holds the claim that pays for it. The caller has locked
-- the node in a statement of its own, so that this one sees what the lock waited
-- for.
-- name: PendingFacts :one
SELECT coalesce((SELECT c.sequence FROM node_certificates c WHERE c.node_id = sqlc.arg(node_id) AND c.serial = sqlc.arg(serial)), -1)::bigint AS stored,
    EXISTS (SELECT 1 FROM enrollment_tokens t
        WHERE t.token_id = sqlc.narg(token_id)::uuid AND t.node_id = sqlc.arg(node_id) AND t.incarnation = sqlc.arg(incarnation)
          AND t.state = 'claimed' AND t.purpose = ANY (sqlc.arg(purposes)::text[]) AND t.claimed_spki = sqlc.arg(spki)::text)
        AS token_held,
    EXISTS (SELECT 1 FROM node_certificates c
        WHERE c.node_id = sqlc.arg(node_id) AND c.slot = 'current' AND c.renewal_spki = sqlc.arg(spki)::text) AS renewal_held;

-- name: ReplacePending :exec
UPDATE node_certificates SET slot = 'replaced', retired_at = now() WHERE node_id = $1 AND slot = 'pending';
