-- Stores the set if it follows the newest one. The primary key decides between
-- concurrent callers.
-- name: InsertVerifierSet :execrows
INSERT INTO verifier_sets (version, epoch, hash, prev_hash, document)
SELECT sqlc.arg(version)::bigint, sqlc.arg(epoch)::bigint, sqlc.arg(hash)::text, sqlc.arg(prev_hash)::text, sqlc.arg(document)::bytea
WHERE (sqlc.arg(version)::bigint, sqlc.arg(prev_hash)::text) = (
    SELECT coalesce(max(version), 0) + 1, coalesce((array_agg(hash ORDER BY version DESC))[1], '') FROM verifier_sets)
ON CONFLICT DO NOTHING;

-- name: GetVerifierSet :one
SELECT version, epoch, hash, prev_hash, document FROM verifier_sets WHERE version = $1;

-- restored is true if a restore mode began after the set was stored, restoring if one is on.
-- name: NewestVerifierSet :one
SELECT version, epoch, hash, prev_hash, document,
    EXISTS (SELECT 1 FROM restore_modes m WHERE coalesce(m.newest_set >= s.version, m.started_at >= s.stored_at)) AS restored,
    EXISTS (SELECT 1 FROM restore_modes WHERE ended_at IS NULL AND ends_at > now()) AS restoring
FROM verifier_sets s ORDER BY version DESC LIMIT 1;

-- Lists nodes that named a set in their last poll that the database does not have.
-- name: NodesOfLostSets :many
SELECT n.host, count(*) OVER () AS nodes FROM nodes n
WHERE n.set_hash <> '' AND n.state <> 'removed' AND n.identity_locked_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM verifier_sets v WHERE v.version = n.set_version AND v.hash = n.set_hash)
ORDER BY n.host LIMIT sqlc.arg(most);

-- name: NewestSetVersion :one
SELECT coalesce(max(version), 0)::bigint AS version FROM verifier_sets;

-- name: VerifierSetsAfter :many
SELECT version, epoch, hash, prev_hash, document FROM verifier_sets WHERE version > $1 ORDER BY version LIMIT $2;
