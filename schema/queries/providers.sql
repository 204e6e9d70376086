-- name: GetProvider :one
SELECT name, info, updated_at FROM providers WHERE name = $1;

-- name: ListProviders :many
SELECT name, info, updated_at FROM providers ORDER BY name;

-- name: PutProvider :exec
INSERT INTO providers (name, info) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET info = EXCLUDED.info, updated_at = now();
