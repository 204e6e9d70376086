-- name: GetProvider :one
SELECT name, info, updated_at FROM providers WHERE name = $1;

-- name: ListProviders :many
SELECT name, info, updated_at FROM providers ORDER BY name;

-- The description of an enabled provider that a worker has stored lately stays if the new one is
-- disabled or is that of another host.
-- name: PutProvider :execrows
INSERT INTO providers AS p (name, info) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET info = EXCLUDED.info, updated_at = now()
WHERE coalesce(p.info ->> 'disabled', '') <> '' OR p.updated_at < now() - make_interval(secs => sqlc.arg(fresh_seconds)::float8)
   OR coalesce(EXCLUDED.info ->> 'disabled', '') = '' AND coalesce(EXCLUDED.info ->> 'host', '') = coalesce(p.info ->> 'host', '');
