-- The check of every request: one read by primary keys.
-- name: IdentityFacts :one
SELECT n.host, n.state, n.incarnation, n.polled_incarnation, c.slot, c.fingerprint
FROM nodes n LEFT JOIN node_certificates c
    ON c.node_id = n.node_id AND c.serial = sqlc.arg(serial) AND c.incarnation = n.incarnation
WHERE n.node_id = sqlc.arg(node_id);

-- name: GetCertificate :one
SELECT slot, incarnation, token_id FROM node_certificates WHERE node_id = $1 AND serial = $2;

-- name: HasCurrentCertificate :one
SELECT EXISTS (SELECT 1 FROM node_certificates WHERE node_id = $1 AND slot = 'current');

-- name: InsertPendingCertificate :exec
INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer, fingerprint, spki,
                               not_before, not_after, token_id)
VALUES ($1, $2, $3, 'pending', $4, $5, $6, $7, $8, $9, $10, $11);

-- name: RetireCertificates :many
UPDATE node_certificates SET slot = 'retired', retired_at = now()
WHERE node_id = $1 AND slot = ANY (sqlc.arg(slots)::text[]) RETURNING serial;

-- name: PromoteCertificate :exec
UPDATE node_certificates SET slot = 'current', promoted_at = now()
WHERE node_id = $1 AND serial = $2 AND slot = 'pending';

-- name: ListCurrentCertificates :many
SELECT node_id, subject, uri, issuer, serial, fingerprint, spki, not_before, not_after FROM node_certificates
WHERE slot = 'current' AND (sqlc.narg(node_id)::uuid IS NULL OR node_id = sqlc.narg(node_id)::uuid);

-- At most once a minute per node and reason.
-- name: RecordRefusal :execrows
INSERT INTO identity_refusals AS r (node_id, reason, recorded_at) VALUES ($1, $2, now())
ON CONFLICT ON CONSTRAINT identity_refusals_pkey DO UPDATE SET recorded_at = now()
WHERE r.recorded_at < now() - interval '1 minute';
