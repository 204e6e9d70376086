-- Reads an agent process of the node: whether it returned before, whether a poll from the time
-- of its return may still be in flight, whether a newer process has polled since, and for
-- how long that one has been known.
-- name: GetSession :one
SELECT s.returned_at, s.return_nonce, s.return_seq,
    coalesce(s.returned_at < now() - make_interval(secs => sqlc.arg(gap_seconds)::float8), false)::boolean AS returned_before,
    coalesce(s.returned_at > now() - make_interval(secs => sqlc.arg(in_flight_seconds)::float8), false)::boolean AS return_in_flight,
    (newer.first_at IS NOT NULL)::boolean AS superseded,
    coalesce(newer.first_at < now() - make_interval(secs => sqlc.arg(in_flight_seconds)::float8), false)::boolean AS superseded_long,
    coalesce(newer.session, '')::text AS newer_session
FROM node_sessions s
LEFT JOIN LATERAL (SELECT n.session, n.first_at FROM node_sessions n
    WHERE n.node_id = s.node_id AND n.incarnation = s.incarnation AND n.number > s.number
    ORDER BY n.number LIMIT 1) newer ON true
WHERE s.node_id = sqlc.arg(node_id) AND s.session = sqlc.arg(session) AND s.incarnation = sqlc.arg(incarnation);

-- The caller holds the node's lock. A process of an earlier incarnation begins again.
-- name: PutSession :exec
INSERT INTO node_sessions AS s (node_id, session, incarnation, number)
SELECT sqlc.arg(node_id), sqlc.arg(session), sqlc.arg(incarnation), coalesce(max(k.number), 0) + 1 FROM node_sessions k WHERE k.node_id = sqlc.arg(node_id)
ON CONFLICT ON CONSTRAINT node_sessions_pkey DO UPDATE
    SET incarnation = excluded.incarnation, number = excluded.number, first_at = excluded.first_at, returned_at = NULL, return_nonce = '', return_seq = 0;

-- name: SetSessionReturn :exec
UPDATE node_sessions SET returned_at = now(), return_nonce = sqlc.arg(nonce), return_seq = sqlc.arg(seq)
WHERE node_id = sqlc.arg(node_id) AND session = sqlc.arg(session);

-- name: SetPollSession :exec
UPDATE nodes SET poll_session = sqlc.arg(session), poll_contested = sqlc.arg(contested) WHERE node_id = sqlc.arg(node_id);

-- Deletes the processes of earlier incarnations. Of the others it keeps the newest ones, and
-- those that no newer process had replaced an hour ago.
-- name: PruneSessions :exec
DELETE FROM node_sessions s USING (
    SELECT k.session, row_number() OVER newest AS place, lag(k.first_at) OVER newest AS replaced_at
    FROM node_sessions k WHERE k.node_id = sqlc.arg(node_id) WINDOW newest AS (ORDER BY k.number DESC)) p
WHERE s.node_id = sqlc.arg(node_id) AND s.session = p.session
  AND (s.incarnation <> sqlc.arg(incarnation) OR p.place > sqlc.arg(keep)::bigint AND p.replaced_at < now() - interval '1 hour');

-- Counts the processes of the node, and those that began while a poll can be in flight.
-- name: CountSessions :one
SELECT count(*) AS sessions, count(*) FILTER (WHERE first_at > now() - make_interval(secs => sqlc.arg(in_flight_seconds)::float8)) AS recent
FROM node_sessions WHERE node_id = sqlc.arg(node_id);

-- Deletes the newest process but the given one.
-- name: DeleteNewestSession :exec
DELETE FROM node_sessions s WHERE s.node_id = sqlc.arg(node_id) AND s.session = (
    SELECT k.session FROM node_sessions k WHERE k.node_id = sqlc.arg(node_id) AND k.session <> sqlc.arg(but) ORDER BY k.number DESC LIMIT 1);

-- name: DeleteSessions :exec
DELETE FROM node_sessions WHERE node_id = $1;
