-- Authenticates a request. A node is idle if all its open tasks run under valid leases:
-- NextTask would return nothing.
-- name: IdentityFacts :one
SELECT n.node_id, n.host, n.state, n.incarnation, n.polled_incarnation, n.set_version, n.set_hash, n.identity_sequence,
       coalesce((SELECT b.digest FROM node_ca_bundles b WHERE b.node_id = n.node_id AND b.incarnation = n.incarnation), '')::text AS ca_bundle,
       greatest(n.task_seq_floor, (SELECT max(t.seq) FROM node_tasks t WHERE t.node_id = n.node_id))::bigint AS task_seq,
       (n.identity_locked_at IS NOT NULL)::boolean AS locked, n.identity_lock_reason, n.poll_session, n.poll_contested, c.slot, c.fingerprint,
       coalesce(c.retired_at > now() - make_interval(secs => sqlc.arg(in_flight_seconds)::float8), false)::boolean AS in_flight,
       NOT EXISTS (SELECT 1 FROM node_tasks t WHERE t.node_id = n.node_id AND t.finished_at IS NULL AND t.status <> 'lost'
                   AND (t.status <> 'running' OR t.lease_until < now())) AS idle
FROM nodes n LEFT JOIN node_certificates c ON c.node_id = n.node_id AND c.serial = sqlc.arg(serial) AND c.incarnation = n.incarnation
WHERE n.node_id = sqlc.arg(node_id);

-- name: GetCertificate :one
SELECT slot, incarnation, sequence, token_id FROM node_certificates WHERE node_id = $1 AND serial = $2;

-- name: CurrentCertificate :one
SELECT serial, sequence, renewal_spki FROM node_certificates WHERE node_id = $1 AND slot = 'current';

-- name: SerialOfRecovery :one
SELECT serial FROM node_certificates WHERE recovery_token_id = $1;

-- Reports whether an identity that the node may use has the key.
-- name: HoldsKey :one
SELECT EXISTS (SELECT 1 FROM node_certificates
    WHERE node_id = sqlc.arg(node_id) AND slot IN ('pending', 'current') AND spki = sqlc.arg(spki));

-- name: InsertPendingCertificate :exec
INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer, fingerprint, spki,
                               not_before, not_after, token_id, via, sequence, recovery_token_id)
VALUES ($1, $2, $3, 'pending', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: RetireCertificates :many
UPDATE node_certificates SET slot = CASE slot WHEN 'current' THEN 'retired' ELSE 'replaced' END, retired_at = now()
WHERE node_id = $1 AND slot = ANY (sqlc.arg(slots)::text[]) RETURNING serial;

-- Replaces the unused certificate of the open reissue.
-- name: ReplaceUnusedOfReissue :exec
UPDATE node_certificates c SET slot = 'replaced', retired_at = now() FROM enrollment_tokens t
WHERE c.node_id = $1 AND c.slot = 'pending' AND t.token_id = c.token_id AND t.purpose = 'reissue' AND t.state = 'claimed';

-- name: PromoteCertificate :exec
UPDATE node_certificates SET slot = 'current', promoted_at = now()
WHERE node_id = $1 AND serial = $2 AND slot = 'pending';

-- Claims a renewal if the caller holds the current certificate and its sequence is
-- not behind, or if it retries with a recorded key. A newer key replaces an older
-- claim.
-- name: ClaimRenewal :one
UPDATE node_certificates c SET renewal_spki = sqlc.arg(spki)::text, renewal_at = now()
FROM node_certificates old
WHERE old.node_id = c.node_id AND old.serial = c.serial
  AND c.node_id = sqlc.arg(node_id) AND c.serial = sqlc.arg(serial) AND c.slot = 'current'
  AND (c.sequence <= sqlc.arg(sequence)::bigint OR c.renewal_spki = sqlc.arg(spki)::text
       OR EXISTS (SELECT 1 FROM node_certificates k
                  WHERE k.node_id = c.node_id AND k.slot IN ('pending', 'current') AND k.spki = sqlc.arg(spki)::text))
RETURNING (old.renewal_spki IS DISTINCT FROM sqlc.arg(spki)::text)::boolean AS first;

-- Counts the certificates for the gauges: the least remaining share of a lifetime,
-- those below the share at which they should have been renewed, and those that were
-- issued long ago and never used.
-- name: CertificateCounts :one
WITH held AS (
    SELECT greatest(0, extract(epoch FROM not_after - now()) / greatest(1, extract(epoch FROM not_after - not_before))) AS share,
        greatest(0, extract(epoch FROM not_after - now())) AS seconds
    FROM node_certificates WHERE slot = 'current'
)
SELECT count(*) AS held, coalesce(min(seconds), 0)::float8 AS expiry_seconds, least(1, coalesce(min(share), 1))::float8 AS share_left,
    count(*) FILTER (WHERE share < sqlc.arg(renewed_at_share)::float8) AS overdue,
    (SELECT count(*) FROM node_certificates p WHERE p.slot = 'pending'
        AND p.issued_at < now() - make_interval(secs => sqlc.arg(unused_seconds)::float8)) AS unpromoted
FROM held;

-- At most once a minute per node and reason.
-- name: RecordRefusal :execrows
INSERT INTO identity_refusals AS r (node_id, reason, recorded_at) VALUES ($1, $2, now())
ON CONFLICT ON CONSTRAINT identity_refusals_pkey DO UPDATE SET recorded_at = now()
WHERE r.recorded_at < now() - interval '1 minute';

-- name: PruneRefusals :exec
DELETE FROM identity_refusals WHERE recorded_at < now() - interval '1 minute';

-- Reads the facts that storing a certificate depends on: the sequence under which
-- it is already stored, or -1, and whether its key still holds the claim. The
-- caller locked the node in an earlier statement, so this one sees the changes
-- that the lock waited for.
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
