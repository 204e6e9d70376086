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
    ADD COLUMN run_started_at timestamptz,
    -- The operation as it was before it was abandoned: a run that an operator reset
    -- continues it as it was.
    ADD COLUMN before_abandon jsonb;

-- The operations whose run is watched, in the order of the batches: the open ones. The
-- condition is not on ended_at, so that only the query of the watch uses the index.
CREATE INDEX operations_watched_idx ON operations (operation_id) WHERE status IN ('accepted', 'running', 'parked', 'abandoned');

-- The decisions of a node's operations: a reset run records a decision again.
CREATE INDEX audit_events_decision_idx ON audit_events (stream, operation_id, (detail ->> 'decision_id'))
    WHERE action = 'operations.resolve';
-- Their parks, for the same reason.
CREATE INDEX audit_events_park_idx ON audit_events (stream, operation_id, (detail ->> 'park_id')) WHERE result = 'parked';

-- +goose Down
DROP INDEX audit_events_park_idx;
DROP INDEX audit_events_decision_idx;
DROP INDEX operations_watched_idx;
UPDATE operations SET status = 'parked' WHERE status = 'abandoned';
ALTER TABLE operations
    DROP COLUMN before_abandon,
    DROP COLUMN run_started_at,
    DROP CONSTRAINT operations_status_check,
    DROP CONSTRAINT operations_ended_check,
    DROP CONSTRAINT operations_stuck_check,
    ADD CONSTRAINT operations_status_check CHECK (status IN (
        'accepted', 'running', 'parked', 'completed', 'failed', 'cancelled')),
    ADD CONSTRAINT operations_ended_check
        CHECK ((ended_at IS NULL) = (status IN ('accepted', 'running', 'parked'))),
    ADD CONSTRAINT operations_stuck_check CHECK ((stuck IS NOT NULL) = (status = 'parked'));
