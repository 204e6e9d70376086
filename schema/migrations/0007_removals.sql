-- +goose Up

-- The signed removal of a removed node's last identity, which the node API sends with
-- the error node_removed. The worker signs it once the removal has completed.
CREATE TABLE node_removals (
    node_id      uuid        CONSTRAINT node_removals_pkey PRIMARY KEY CONSTRAINT node_removals_node_fkey REFERENCES nodes (node_id),
    incarnation  bigint      NOT NULL,
    operation_id uuid        NOT NULL CONSTRAINT node_removals_operation_fkey REFERENCES operations (operation_id),
    document     bytea       NOT NULL, -- bytes, not JSON: they are signed
    expires_at   timestamptz NOT NULL
);

-- +goose Down
DROP TABLE node_removals;
