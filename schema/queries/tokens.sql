-- name: GetToken :one
SELECT token_id, node_id, incarnation, state, secret_hash, claimed_spki, (expires_at <= now())::boolean AS expired
FROM enrollment_tokens WHERE token_id = $1;

-- name: InsertToken :exec
INSERT INTO enrollment_tokens (token_id, node_id, incarnation, purpose, secret_hash, expires_at)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: VoidTokens :execrows
UPDATE enrollment_tokens SET state = 'voided', ended_at = now()
WHERE node_id = $1 AND state IN ('issued', 'claimed');

-- Decides who wins a token: the first key, and after it the same key again.
-- name: ClaimToken :one
UPDATE enrollment_tokens t SET state = 'claimed', claimed_spki = sqlc.arg(spki)::text, claimed_at = coalesce(t.claimed_at, now())
FROM enrollment_tokens old
WHERE old.token_id = t.token_id AND t.token_id = sqlc.arg(token_id) AND t.node_id = sqlc.arg(node_id)
  AND t.expires_at > now()
  AND (t.state = 'issued' OR (t.state = 'claimed' AND t.claimed_spki = sqlc.arg(spki)::text))
RETURNING t.incarnation, (old.state = 'issued')::boolean AS first;

-- name: ConsumeToken :exec
UPDATE enrollment_tokens SET state = 'consumed', ended_at = now() WHERE token_id = $1 AND state = 'claimed';
