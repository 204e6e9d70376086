-- Locks the head of the stream until the end of the transaction.
-- name: AppendAudit :exec
SELECT audit_append(sqlc.arg(stream), sqlc.arg(actor), sqlc.arg(via), sqlc.arg(action), sqlc.arg(target), sqlc.arg(result),
                    sqlc.arg(reason), sqlc.arg(correlation_id), sqlc.arg(operation_id), sqlc.arg(detail));

-- Reports whether the park of an operation is in the audit already. The caller holds the
-- lock of the operation's node, whose stream it is.
-- name: ParkNoted :one
SELECT EXISTS (SELECT 1 FROM audit_events WHERE stream = sqlc.arg(stream) AND result = 'parked'
               AND operation_id = sqlc.arg(operation_id) AND detail ->> 'park_id' = sqlc.arg(park_id)::text)::boolean;

-- Reports whether an action of an operation is in the audit already. The caller holds the lock of the
-- operation's node, whose stream it is.
-- name: ActionNoted :one
SELECT EXISTS (SELECT 1 FROM audit_events WHERE stream = sqlc.arg(stream) AND action = sqlc.arg(action)
               AND operation_id = sqlc.arg(operation_id))::boolean;

-- The streams that have events, and those of all nodes: a registration is an event, so a
-- stream of a node without events was removed.
-- name: ListAuditStreams :many
SELECT stream FROM (SELECT h.stream FROM audit_heads h WHERE h.seq > 0 UNION SELECT n.node_id::text FROM nodes n) s
WHERE stream > sqlc.arg(after) ORDER BY stream LIMIT sqlc.arg(row_limit)::bigint;

-- Reports whether the decision about an operation is in the audit already. The caller
-- holds the lock of the operation's node, whose stream it is.
-- name: DecisionNoted :one
SELECT EXISTS (SELECT 1 FROM audit_events WHERE stream = sqlc.arg(stream) AND action = 'operations.resolve'
               AND operation_id = sqlc.arg(operation_id) AND detail ->> 'decision_id' = sqlc.arg(decision_id)::text)::boolean;

-- Up to row_limit heads that are ahead of the last checkpoint of their stream, those first
-- whose events wait the longest.
-- name: ChangedHeads :many
SELECT h.stream, h.seq, h.hash FROM audit_heads h LEFT JOIN audit_checkpoint_heads c USING (stream)
LEFT JOIN audit_events e ON e.stream = h.stream AND e.seq = coalesce(c.seq, 0) + 1
WHERE h.seq > coalesce(c.seq, 0) ORDER BY coalesce(e.at, h.at), h.stream LIMIT sqlc.arg(row_limit);

-- The streams with an event that no checkpoint has covered for after_seconds: how many, and
-- the age of the oldest such event.
-- name: StaleHeads :one
SELECT count(*)::bigint AS streams, coalesce(extract(epoch FROM now() - min(coalesce(e.at, h.at))), 0)::double precision AS oldest_seconds
FROM audit_heads h LEFT JOIN audit_checkpoint_heads c USING (stream)
LEFT JOIN audit_events e ON e.stream = h.stream AND e.seq = coalesce(c.seq, 0) + 1
WHERE h.seq > coalesce(c.seq, 0) AND coalesce(e.at, h.at) < now() - make_interval(secs => sqlc.arg(after_seconds)::double precision);

-- The streams that lack events of their last checkpoint: how many, and one of them.
-- name: CutStreams :one
SELECT count(*)::bigint AS streams, coalesce(min(c.stream), '')::text AS first
FROM audit_checkpoint_heads c LEFT JOIN audit_heads h USING (stream) WHERE h.seq IS NULL OR h.seq < c.seq;

-- name: NewestCheckpoint :one
SELECT number, hash, signed FROM audit_checkpoints ORDER BY number DESC LIMIT 1;

-- The greatest number of a checkpoint that is stored, or that a node keeps. The node API
-- may write any number to audit_missing. A checkpoint that was signed has a smaller number
-- than the seconds since 1970, because there is at most one in 30 seconds.
-- name: GreatestCheckpoint :one
SELECT greatest((SELECT coalesce(max(c.number), 0) FROM audit_checkpoints c),
                (SELECT least(coalesce(max(m.number), 0), extract(epoch FROM now())::bigint)
                 FROM audit_missing m WHERE m.verified))::bigint AS number;

-- The unique hash of the checkpoint before decides between concurrent workers.
-- name: InsertCheckpoint :execrows
INSERT INTO audit_checkpoints (number, hash, prev_hash, body, signed) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING;

-- name: SetCheckpointHeads :exec
INSERT INTO audit_checkpoint_heads (stream, seq)
SELECT unnest(sqlc.arg(streams)::text[]), unnest(sqlc.arg(seqs)::bigint[])
ON CONFLICT ON CONSTRAINT audit_checkpoint_heads_pkey DO UPDATE SET seq = excluded.seq;

-- name: CheckpointHash :one
SELECT hash FROM audit_checkpoints WHERE number = $1;

-- name: CheckpointsAfter :many
SELECT number, hash, body, signed FROM audit_checkpoints WHERE number > sqlc.arg(after) ORDER BY number LIMIT sqlc.arg(row_limit);

-- name: InsertMissingCheckpoint :execrows
INSERT INTO audit_missing (number, hash, verified, signed, node_id) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING;

-- name: MissingCheckpoints :one
SELECT count(*)::bigint AS checkpoints, coalesce(min(number), 0)::bigint AS first, coalesce(max(number), 0)::bigint AS last,
       coalesce((array_agg(signed ORDER BY number DESC))[1], '')::text AS newest,
       coalesce((array_agg(node_id::text ORDER BY number DESC))[1], '')::text AS node_id
FROM audit_missing WHERE verified AND accepted_at IS NULL;

-- The nodes that keep a false checkpoint: how many, and one of them.
-- name: UnverifiedCheckpoints :one
SELECT count(DISTINCT node_id)::bigint AS nodes, coalesce(min(node_id::text), '')::text AS first
FROM audit_missing WHERE NOT verified AND accepted_at IS NULL;

-- name: AcceptMissingCheckpoints :execrows
UPDATE audit_missing SET accepted_at = now() WHERE accepted_at IS NULL;

-- name: AuditHead :one
SELECT seq, hash FROM audit_heads WHERE stream = $1;
