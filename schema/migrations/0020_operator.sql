-- +goose Up

-- Labels are free KEY=VALUE pairs that operators select nodes by.
ALTER TABLE nodes ADD COLUMN labels jsonb NOT NULL DEFAULT '{}'
    CONSTRAINT nodes_labels_check CHECK (jsonb_typeof(labels) = 'object');
CREATE INDEX nodes_labels_idx ON nodes USING gin (labels jsonb_path_ops);
-- The order of the node list: pages continue after (host, node_id).
CREATE INDEX nodes_page_idx ON nodes (host, node_id);

-- The operation's whole status: what GET /operations/{id} answers.
ALTER TABLE operations ADD COLUMN IF NOT EXISTS document jsonb;
-- When the row last changed, for GET /events.
ALTER TABLE operations ADD COLUMN changed_at timestamptz NOT NULL DEFAULT clock_timestamp();
-- +goose StatementBegin
CREATE FUNCTION operations_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_at := clock_timestamp();
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER operations_changed BEFORE UPDATE ON operations
    FOR EACH ROW EXECUTE FUNCTION operations_changed();
CREATE INDEX operations_changed_idx ON operations (changed_at);
-- The order of the operation list, of all nodes and of one.
CREATE INDEX operations_page_idx ON operations (started_at, operation_id);
CREATE INDEX operations_node_page_idx ON operations (node_id, started_at, operation_id);

CREATE INDEX node_tasks_page_idx ON node_tasks (created_at, task_id);

-- The order of the audit list over all streams.
CREATE INDEX audit_events_page_idx ON audit_events (at, stream, seq);

-- The idempotency keys of requests whose effect has no id derived from the key.
CREATE TABLE request_keys (
    scope      text        NOT NULL, -- the endpoint and what it is about
    key        text        NOT NULL,
    subject    text        NOT NULL, -- who used it
    result     text        NOT NULL DEFAULT '', -- an id, never a body
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT request_keys_pkey PRIMARY KEY (scope, key)
);
CREATE INDEX request_keys_created_idx ON request_keys (created_at);

-- +goose Down
DROP TABLE request_keys;
DROP INDEX audit_events_page_idx;
DROP INDEX node_tasks_page_idx;
DROP INDEX operations_node_page_idx;
DROP INDEX operations_page_idx;
DROP INDEX operations_changed_idx;
DROP TRIGGER operations_changed ON operations;
DROP FUNCTION operations_changed();
ALTER TABLE operations DROP COLUMN changed_at, DROP COLUMN IF EXISTS document;
DROP INDEX nodes_page_idx;
DROP INDEX nodes_labels_idx;
ALTER TABLE nodes DROP COLUMN labels;
