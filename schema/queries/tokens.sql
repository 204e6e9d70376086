-- name: GetToken :one
SELECT token_id, node_id, incarnation, purpose, state, secret_hash, claimed_spki, (expires_at <= now())::boolean AS expired
FROM enrollment_tokens WHERE token_id = $1;

-- name: DatabaseTime :one
SELECT now()::timestamptz AS now;

-- name: InsertToken :exec
INSERT INTO enrollment_tokens (token_id, node_id, incarnation, purpose, bundle_purpose, secret_hash, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: VoidTokens :many
UPDATE enrollment_tokens SET state = 'voided', ended_at = now()
WHERE node_id = sqlc.arg(node_id) AND purpose = ANY (sqlc.arg(purposes)::text[]) AND state IN ('issued', 'claimed')
RETURNING token_id, purpose;

-- Voids the recovery tokens that no identity needs. A token is live with its own
-- certificate and while the certificate that it paid for is pending, since the node
-- may have to present it again.
-- name: VoidRecoveryTokens :exec
UPDATE enrollment_tokens t SET state = 'voided', ended_at = now()
WHERE t.node_id = $1 AND t.purpose = 'recover' AND t.state IN ('issued', 'claimed')
  AND NOT EXISTS (SELECT 1 FROM node_certificates c WHERE c.node_id = t.node_id
      AND ((c.slot IN ('pending', 'current') AND c.recovery_token_id = t.token_id)
           OR (c.slot = 'pending' AND c.token_id = t.token_id)));

-- Claims a token for the first key that asks, and for the same key again. The
-- expiry limits the first claim only: the claim voided the node's older identity,
-- and its response may have been lost before a long outage. The claim binds the key
-- to the node permanently; bound is false if the key belongs to another node.
-- name: ClaimToken :one
WITH won AS (
    UPDATE enrollment_tokens t SET state = 'claimed', claimed_spki = sqlc.arg(spki)::text, claimed_at = coalesce(t.claimed_at, now())
    FROM enrollment_tokens old
    WHERE old.token_id = t.token_id AND t.token_id = sqlc.arg(token_id) AND t.node_id = sqlc.arg(node_id)
      AND t.purpose = ANY (sqlc.arg(purposes)::text[])
      AND ((t.state = 'issued' AND t.expires_at > now()) OR (t.state = 'claimed' AND t.claimed_spki = sqlc.arg(spki)::text))
    RETURNING t.incarnation, t.node_id, (old.state = 'issued')::boolean AS first
), bound AS (
    INSERT INTO identity_keys AS k (spki, node_id) SELECT sqlc.arg(spki)::text, won.node_id FROM won
    ON CONFLICT ON CONSTRAINT identity_keys_pkey DO UPDATE SET spki = excluded.spki WHERE k.node_id = excluded.node_id
    RETURNING k.node_id
)
SELECT won.incarnation, won.first, EXISTS (SELECT 1 FROM bound) AS bound FROM won;

-- Consumes the token that paid for the identity and every enrollment token of the
-- incarnation.
-- name: ConsumeTokens :exec
UPDATE enrollment_tokens SET state = 'consumed', ended_at = now()
WHERE node_id = sqlc.arg(node_id) AND state = 'claimed'
  AND (token_id = sqlc.narg(token_id)::uuid
       OR (purpose IN ('enroll', 'reissue') AND incarnation = sqlc.arg(incarnation)));

-- Spends a fetch reference: exactly one caller gets the row.
-- name: UseFetch :one
UPDATE enrollment_tokens SET state = 'consumed', ended_at = now()
WHERE token_id = $1 AND purpose = 'fetch' AND state = 'issued' AND expires_at > now()
RETURNING node_id, bundle_purpose;

-- Reads a fetch reference that UseFetch would spend.
-- name: LiveFetch :one
SELECT node_id, bundle_purpose, expires_at FROM enrollment_tokens
WHERE token_id = $1 AND purpose = 'fetch' AND state = 'issued' AND expires_at > now();

-- Reports whether the operation's node has a live reference that was issued since the
-- operation began, and in the last seconds.
-- name: RecentFetch :one
SELECT EXISTS (SELECT 1 FROM enrollment_tokens t JOIN operations o ON o.node_id = t.node_id
    WHERE o.operation_id = sqlc.arg(operation_id) AND t.purpose = 'fetch' AND t.state = 'issued'
      AND t.issued_at >= o.started_at AND t.issued_at > now() - make_interval(secs => sqlc.arg(seconds)::float8));

-- name: IncarnationReissued :one
SELECT EXISTS (SELECT 1 FROM enrollment_tokens
    WHERE node_id = $1 AND incarnation = $2 AND purpose = 'reissue' AND claimed_at IS NOT NULL);

-- Changes no row if the key belongs to another node.
-- name: BindKey :execrows
INSERT INTO identity_keys AS k (spki, node_id) VALUES (sqlc.arg(spki), sqlc.arg(node_id))
ON CONFLICT ON CONSTRAINT identity_keys_pkey DO UPDATE SET spki = excluded.spki WHERE k.node_id = excluded.node_id;
