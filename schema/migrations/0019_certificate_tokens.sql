-- +goose NO TRANSACTION
-- +goose Up

-- For the foreign key: the deletion of a token looks for its certificates.
SET lock_timeout = '15min';
DROP INDEX CONCURRENTLY IF EXISTS node_certificates_token_idx;
CREATE INDEX CONCURRENTLY node_certificates_token_idx ON node_certificates (token_id);
RESET lock_timeout;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS node_certificates_token_idx;
