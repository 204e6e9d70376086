-- +goose Up

-- The version of the verifier set that the node's last poll named, 0 before the
-- first of an incarnation. Written when it changes only.
ALTER TABLE nodes ADD COLUMN set_version bigint NOT NULL DEFAULT 0
    CONSTRAINT nodes_set_version_check CHECK (set_version >= 0);

-- +goose Down
ALTER TABLE nodes DROP COLUMN set_version;
