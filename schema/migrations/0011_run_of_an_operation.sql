-- +goose Up

-- The run that works on the operation now, where it is not the one that claimed:
-- a run that was reset in Temporal goes on as another. run_id stays what the claim
-- is known by.
ALTER TABLE operations ADD COLUMN latest_run_id text;

-- +goose Down
ALTER TABLE operations DROP COLUMN latest_run_id;
