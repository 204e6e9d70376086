-- +goose NO TRANSACTION
-- +goose Up

-- For the durations of phases in a plan: the newest operations of an action.
SET lock_timeout = '15min';
DROP INDEX CONCURRENTLY IF EXISTS operations_completed_idx;
CREATE INDEX CONCURRENTLY operations_completed_idx ON operations (action, ended_at) WHERE status = 'completed';
RESET lock_timeout;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS operations_completed_idx;
