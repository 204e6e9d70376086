-- +goose Up

-- agent_release is the signed document for amd64, and this one that for arm64; '' for none.
ALTER TABLE templates ADD COLUMN agent_release_arm64 text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE templates DROP COLUMN agent_release_arm64;
