-- +goose Up

-- An operation is abandoned when it is open and no run of its workflow is open in
-- Temporal. Its stuck object says how the run ended.
ALTER TABLE operations
    DROP CONSTRAINT operations_status_check,
    DROP CONSTRAINT operations_ended_check,
    DROP CONSTRAINT operations_stuck_check,
    ADD CONSTRAINT operations_status_check CHECK (status IN (
        'accepted', 'running', 'parked', 'abandoned', 'completed', 'failed', 'cancelled')),
    ADD CONSTRAINT operations_ended_check
        CHECK ((ended_at IS NULL) = (status IN ('accepted', 'running', 'parked', 'abandoned'))),
    ADD CONSTRAINT operations_stuck_check CHECK ((stuck IS NOT NULL) = (status IN ('parked', 'abandoned'))),
    -- When the run that made the claim started, by Temporal's clock. The claim of an
    -- earlier run does not supersede the operation.
    ADD COLUMN run_started_at timestamptz;

-- The operations whose run is watched, in the order of the batches: the open ones. The
-- condition is not on ended_at, so that only the query of the watch uses the index.
CREATE INDEX operations_watched_idx ON operations (operation_id) WHERE status IN ('accepted', 'running', 'parked', 'abandoned');

-- +goose Down
DROP INDEX operations_watched_idx;
UPDATE operations SET status = 'parked' WHERE status = 'abandoned';
ALTER TABLE operations
    DROP COLUMN run_started_at,
    DROP CONSTRAINT operations_status_check,
    DROP CONSTRAINT operations_ended_check,
    DROP CONSTRAINT operations_stuck_check,
    ADD CONSTRAINT operations_status_check CHECK (status IN (
        'accepted', 'running', 'parked', 'completed', 'failed', 'cancelled')),
    ADD CONSTRAINT operations_ended_check
        CHECK ((ended_at IS NULL) = (status IN ('accepted', 'running', 'parked'))),
    ADD CONSTRAINT operations_stuck_check CHECK ((stuck IS NOT NULL) = (status = 'parked'));
