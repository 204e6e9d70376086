-- name: DeleteOldTasks :one
SELECT delete_old_tasks(sqlc.arg(keep_seconds), sqlc.arg(max_rows));

-- name: DeleteOldIdentities :one
SELECT delete_old_identities(sqlc.arg(keep_seconds), sqlc.arg(max_rows));

-- Deletes messages whose workflow is gone.
-- name: DeleteOldMessages :execrows
DELETE FROM outbox WHERE id IN (
    SELECT o.id FROM outbox o WHERE o.orphaned_at < now() - make_interval(secs => sqlc.arg(keep_seconds)::float8)
    LIMIT sqlc.arg(max_rows)::bigint FOR UPDATE SKIP LOCKED);

-- name: RetentionSucceeded :exec
UPDATE retention_runs SET succeeded_at = now();

-- The seconds since old records were last deleted completely.
-- name: RetentionAge :one
SELECT coalesce(extract(epoch FROM now() - max(succeeded_at)), 0)::float8 AS seconds FROM retention_runs;

-- The file with the last checkpoint that is archived.
-- name: LastArchive :one
SELECT a.last_checkpoint, a.file, a.sha256, c.hash FROM audit_archives a JOIN audit_checkpoints c ON c.number = a.last_checkpoint
ORDER BY a.last_checkpoint DESC LIMIT 1;

-- The last event of each of the streams that is archived up to the checkpoint.
-- name: ArchivedHeads :many
SELECT DISTINCT ON (stream) stream, seq, hash FROM audit_archived_heads
WHERE stream = ANY (sqlc.arg(streams)::text[]) AND last_checkpoint <= sqlc.arg(last_checkpoint) ORDER BY stream, seq DESC;

-- name: RecordArchive :one
SELECT audit_archive(sqlc.arg(after_checkpoint), sqlc.arg(last_checkpoint), sqlc.arg(file), sqlc.arg(sha256), sqlc.arg(events));

-- The streams whose archived events can be deleted: for each up to which event, with the
-- file that has it.
-- name: DeletableAudit :many
SELECT DISTINCT ON (a.stream) a.stream, a.seq, r.file, r.sha256
FROM audit_archived_heads a JOIN audit_archives r USING (last_checkpoint)
WHERE EXISTS (SELECT FROM audit_events e WHERE e.stream = a.stream AND e.seq = a.seq) AND audit_deletable(a.stream, a.seq)
ORDER BY a.stream, a.seq LIMIT sqlc.arg(max_rows)::bigint;

-- name: CutAudit :one
SELECT audit_cut(sqlc.arg(streams)::text[], sqlc.arg(seqs)::bigint[]);
