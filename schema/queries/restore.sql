-- The epoch of the restore mode that is on, 0 if none is.
-- name: RestoreEpoch :one
SELECT coalesce(max(epoch), 0)::bigint FROM restore_modes WHERE ended_at IS NULL AND ends_at > now();

-- Records the end of a restore mode whose time is over.
-- name: CloseRestoreMode :exec
UPDATE restore_modes SET ended_at = ends_at WHERE ended_at IS NULL AND ends_at <= now();

-- name: StartRestoreMode :one
INSERT INTO restore_modes (actor, reason, ends_at, last_audit_at, newest_set)
VALUES (sqlc.arg(actor), sqlc.arg(reason), now() + make_interval(secs => sqlc.arg(seconds)::float8), (SELECT max(at) FROM audit_events),
    (SELECT coalesce(max(version), 0) FROM verifier_sets))
RETURNING epoch;

-- name: SetTokensVoided :exec
UPDATE restore_modes SET tokens_voided = sqlc.arg(tokens) WHERE epoch = sqlc.arg(epoch);

-- name: EndRestoreMode :execrows
UPDATE restore_modes SET ended_at = now() WHERE ended_at IS NULL;

-- Voids what may have been used since the time to which the database was restored.
-- name: VoidOpenTokens :many
UPDATE enrollment_tokens SET state = 'voided', ended_at = now() WHERE purpose <> 'recover' AND state IN ('issued', 'claimed')
RETURNING node_id, (purpose = 'reissue' OR coalesce(bundle_purpose, '') = 'reissue')::boolean AS reissue;

-- Reports whether the schema has sessions of the console: a dump may be from a version before them.
-- name: HasConsoleSessions :one
SELECT (to_regclass('console_sessions') IS NOT NULL)::boolean;

-- Ends all sessions of the console, because some may have ended since the time to which the database was restored.
-- name: EndConsoleSessions :exec
DELETE FROM console_sessions;

-- The nodes with an open reissue. The order avoids deadlocks.
-- name: ReissuedNodes :many
SELECT DISTINCT node_id FROM operations WHERE ended_at IS NULL AND action = 'reissue-enrollment' ORDER BY node_id;

-- name: AbandonedNodes :many
SELECT DISTINCT node_id FROM operations WHERE status = 'abandoned' ORDER BY node_id;

-- The newest restore mode, with what was found and changed since its start.
-- name: RestoreStatus :one
WITH since AS MATERIALIZED (
    SELECT e.stream, e.action, e.result, e.reason, e.detail FROM audit_events e
    WHERE e.at >= (SELECT m.started_at FROM restore_modes m ORDER BY m.epoch DESC LIMIT 1)
      AND e.action IN ('nodes.floors_raised', 'nodes.identity_adopted', 'nodes.rehydrate', 'nodes.identity_refused')
)
SELECT r.epoch, r.actor, r.reason, r.started_at, r.ends_at, (r.ended_at IS NULL AND r.ends_at > now())::boolean AS on_now,
    r.last_audit_at, r.tokens_voided,
    (SELECT count(DISTINCT stream) FROM since WHERE action = 'nodes.floors_raised' AND result = 'succeeded') AS nodes_ahead,
    (SELECT coalesce(sum(greatest((detail ->> 'task_seq')::bigint - (detail ->> 'task_seq_on_record')::bigint, 0)), 0) FROM since
     WHERE action = 'nodes.floors_raised' AND result = 'succeeded')::bigint AS tasks_missing,
    (SELECT count(*) FROM since WHERE action = 'nodes.identity_adopted' AND result = 'succeeded') AS identities_adopted,
    (SELECT count(*) FROM since WHERE action = 'nodes.rehydrate' AND result = 'succeeded') AS operations_ended,
    (SELECT count(*) FROM since WHERE action = 'nodes.identity_refused' AND stream = 'system') AS unknown_nodes,
    (SELECT count(*) FROM nodes n WHERE n.set_hash <> '' AND n.state <> 'removed' AND n.identity_locked_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM verifier_sets v WHERE v.version = n.set_version AND v.hash = n.set_hash)) AS lost_sets,
    ARRAY (SELECT n.host FROM nodes n WHERE n.state <> 'removed' AND n.identity_locked_at IS NULL AND n.polled_incarnation > 0
           AND (n.last_heartbeat_at IS NULL OR n.last_heartbeat_at < r.started_at) ORDER BY n.host LIMIT 1000)::text[] AS absent
FROM restore_modes r ORDER BY r.epoch DESC LIMIT 1;

-- Inserts a certificate that the node proved to hold, which the database does not have.
-- name: AdoptCertificate :exec
INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer, fingerprint, spki, not_before, not_after,
                               via, sequence, promoted_at)
VALUES ($1, $2, $3, 'current', $4, $5, $6, $7, $8, $9, $10, 'recover', 0, now());

-- Ends the certificates that an adopted one replaces. They prove no clone.
-- name: ReplaceCertificates :exec
UPDATE node_certificates SET slot = 'replaced', retired_at = now() WHERE node_id = $1 AND slot IN ('pending', 'current');

-- The start of the validity of the node's current certificate.
-- name: CurrentNotBefore :one
SELECT incarnation, not_before FROM node_certificates WHERE node_id = $1 AND slot = 'current';

-- Takes over an incarnation that began after the time to which the database was restored.
-- name: AdoptIncarnation :exec
UPDATE nodes SET incarnation = sqlc.arg(incarnation), recovery_key = NULL, identity_sequence = 0, set_version = 0, set_hash = ''
WHERE node_id = sqlc.arg(node_id) AND incarnation < sqlc.arg(incarnation);
