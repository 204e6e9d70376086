-- +goose Up

-- The version of the newest verifier set at the start. A set that is published later replaces those
-- that the database lost. It is NULL if a program of an earlier version started the mode.
ALTER TABLE restore_modes ADD COLUMN newest_set bigint;

-- +goose Down
ALTER TABLE restore_modes DROP COLUMN newest_set;
