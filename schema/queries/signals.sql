-- Adds a signal, with the node's live instance. A second call with the ID adds nothing.
-- name: InsertSignal :exec
INSERT INTO signals (signal_id, node_id, instance_id, type, source, status, component, reason, code, repair, boot_id, detail)
VALUES (sqlc.arg(signal_id), sqlc.arg(node_id), (SELECT i.instance_id FROM instances i WHERE i.node_id = sqlc.arg(node_id) AND i.state <> 'terminated'),
        sqlc.arg(type), sqlc.arg(source), sqlc.arg(status), sqlc.arg(component), sqlc.arg(reason), sqlc.arg(code), sqlc.arg(repair),
        sqlc.arg(boot_id), sqlc.arg(detail))
ON CONFLICT (signal_id) DO NOTHING;

-- The count of the present hour. The caller holds the node's lock.
-- name: SignalCount :one
SELECT recorded, dropped, signal_id FROM signal_counts WHERE node_id = $1 AND hour = date_trunc('hour', now(), 'UTC');

-- name: PutSignalCount :exec
INSERT INTO signal_counts (node_id, hour, recorded, dropped, signal_id)
VALUES (sqlc.arg(node_id), date_trunc('hour', now(), 'UTC'), sqlc.arg(recorded), sqlc.arg(dropped), sqlc.narg(signal_id))
ON CONFLICT (node_id) DO UPDATE SET hour = excluded.hour, recorded = excluded.recorded, dropped = excluded.dropped, signal_id = excluded.signal_id;

-- The only change of a signal: how many were dropped.
-- name: SetSignalDetail :exec
UPDATE signals SET detail = $2 WHERE signal_id = $1;

-- Records that a report with unchanged conditions arrived. No row if there is something to compare.
-- name: RepeatReport :execrows
UPDATE health_reports SET at = sqlc.arg(at), reported_at = now()
WHERE node_id = sqlc.arg(node_id) AND source = sqlc.arg(source) AND incarnation = sqlc.arg(incarnation) AND boot_id = sqlc.arg(boot_id)
  AND digest = sqlc.arg(digest) AND at <= sqlc.arg(at);

-- name: GetReport :one
SELECT incarnation, at, reported_at FROM health_reports WHERE node_id = $1 AND source = $2;

-- name: PutReport :exec
INSERT INTO health_reports (node_id, source, incarnation, boot_id, at, reported_at, digest)
VALUES (sqlc.arg(node_id), sqlc.arg(source), sqlc.arg(incarnation), sqlc.arg(boot_id), sqlc.arg(at), now(), sqlc.arg(digest))
ON CONFLICT (node_id, source) DO UPDATE SET incarnation = excluded.incarnation, boot_id = excluded.boot_id, at = excluded.at,
    reported_at = excluded.reported_at, digest = excluded.digest;

-- name: ListConditions :many
SELECT checker, component, status, reason, code, repair, detail, since, samples, fault_since, fault_samples, unknown_seconds
FROM conditions WHERE node_id = $1 AND source = $2;

-- name: PutConditions :exec
INSERT INTO conditions AS c (node_id, source, checker, component, status, reason, code, repair, detail, since, samples, fault_since, fault_samples, unknown_seconds)
SELECT sqlc.arg(node_id), sqlc.arg(source), unnest(sqlc.arg(checkers)::text[]), unnest(sqlc.arg(components)::text[]), unnest(sqlc.arg(statuses)::text[]),
       unnest(sqlc.arg(reasons)::text[]), unnest(sqlc.arg(codes)::integer[]), unnest(sqlc.arg(repairs)::text[]), unnest(sqlc.arg(details)::text[]),
       unnest(sqlc.arg(sinces)::timestamptz[]), unnest(sqlc.arg(samples)::integer[]), unnest(sqlc.arg(fault_sinces)::timestamptz[]),
       unnest(sqlc.arg(fault_samples)::integer[]), unnest(sqlc.arg(unknown_seconds)::bigint[])
ON CONFLICT (node_id, source, checker, component) DO UPDATE SET status = excluded.status, reason = excluded.reason, code = excluded.code,
    repair = excluded.repair, detail = excluded.detail, since = excluded.since, samples = excluded.samples,
    fault_since = excluded.fault_since, fault_samples = excluded.fault_samples, unknown_seconds = excluded.unknown_seconds;

-- name: DeleteConditions :exec
DELETE FROM conditions c USING (SELECT unnest(sqlc.arg(checkers)::text[]) AS checker, unnest(sqlc.arg(components)::text[]) AS component) gone
WHERE c.node_id = sqlc.arg(node_id) AND c.source = sqlc.arg(source) AND c.checker = gone.checker AND c.component = gone.component;

-- Deletes what the agent of a machine that is gone, and the cluster agent, reported.
-- name: ForgetReports :exec
WITH reports AS (DELETE FROM health_reports r WHERE r.node_id = sqlc.arg(node_id)),
    artifacts AS (DELETE FROM node_artifacts a WHERE a.node_id = sqlc.arg(node_id))
DELETE FROM conditions c WHERE c.node_id = sqlc.arg(node_id);

-- Deletes what is kept about the present state of a node that is removed.
-- name: ForgetNode :exec
WITH drifts AS (DELETE FROM node_drifts d WHERE d.node_id = sqlc.arg(node_id))
DELETE FROM signal_counts c WHERE c.node_id = sqlc.arg(node_id);

-- Counts the nodes with an unhealthy condition by checker and reason, the largest count first. Nodes
-- choose both, so a node has at most max_per_node pairs, those of known checkers first; the others count
-- as one. Conditions without a report for so long are unknown.
-- name: ConditionCounts :many
WITH pairs AS (
    SELECT DISTINCT c.node_id, c.checker, c.reason
    FROM conditions c JOIN health_reports r USING (node_id, source) JOIN nodes n USING (node_id)
    WHERE c.status = 'unhealthy' AND r.incarnation = n.incarnation AND r.reported_at > now() - make_interval(secs => sqlc.arg(fresh_seconds)::float8)
), ranked AS (
    SELECT p.node_id, p.checker, p.reason, row_number() OVER (PARTITION BY p.node_id ORDER BY p.checker = ANY(sqlc.arg(known)::text[]) DESC, p.checker, p.reason)
        <= sqlc.arg(max_per_node)::bigint AS kept FROM pairs p
)
SELECT (CASE WHEN kept THEN checker ELSE '' END)::text AS checker, (CASE WHEN kept THEN reason ELSE '' END)::text AS reason,
    count(DISTINCT node_id) AS nodes
FROM ranked GROUP BY 1, 2 ORDER BY nodes DESC, 1, 2;

-- name: DeleteOldSignals :execrows
DELETE FROM signals WHERE signal_id IN (
    SELECT s.signal_id FROM signals s WHERE s.at < now() - make_interval(secs => sqlc.arg(keep_seconds)::float8)
    ORDER BY s.at LIMIT sqlc.arg(max_rows)::bigint);
