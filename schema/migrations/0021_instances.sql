-- +goose Up

-- What the provisioning asked for, and when the instance ended.
ALTER TABLE instances
    ADD COLUMN region text NOT NULL DEFAULT '',
    ADD COLUMN machine_type text NOT NULL DEFAULT '',
    ADD COLUMN image text NOT NULL DEFAULT '',
    ADD COLUMN spot boolean NOT NULL DEFAULT false,
    ADD COLUMN ssh_keys text[] NOT NULL DEFAULT '{}',
    ADD COLUMN ended_at timestamptz;

-- +goose Down
ALTER TABLE instances
    DROP COLUMN region, DROP COLUMN machine_type, DROP COLUMN image, DROP COLUMN spot, DROP COLUMN ssh_keys, DROP COLUMN ended_at;
