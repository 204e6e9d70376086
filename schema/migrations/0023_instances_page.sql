-- +goose NO TRANSACTION
-- +goose Up

-- For the list of instances, newest first.
SET lock_timeout = '15min';
DROP INDEX CONCURRENTLY IF EXISTS instances_page_idx;
CREATE INDEX CONCURRENTLY instances_page_idx ON instances (created_at, instance_id);
RESET lock_timeout;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS instances_page_idx;
