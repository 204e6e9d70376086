-- +goose Up

-- The providers of the workers: each worker writes those that it has. A node is registered with
-- one of them.
CREATE TABLE providers (
    name text PRIMARY KEY,
    info jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO providers (name, info) VALUES ('manual', '{"name": "manual", "creates": false}');

-- +goose Down
DROP TABLE providers;
