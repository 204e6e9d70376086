-- +goose Up

-- The hard resets that repairs asked a provider for. A row is written before the call, so that a call
-- whose result is lost is not repeated blindly.
CREATE TABLE machine_resets (
    operation_id uuid        NOT NULL CONSTRAINT machine_resets_operation_fkey REFERENCES operations (operation_id) ON DELETE CASCADE,
    step         text        NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT machine_resets_pkey PRIMARY KEY (operation_id, step)
);

-- The evidence for the vendor of nodes that no repair cured. It is kept after the removal of the node
-- and after the deletion of its records, so it has no foreign keys.
CREATE TABLE rma_bundles (
    operation_id uuid        CONSTRAINT rma_bundles_pkey PRIMARY KEY,
    node_id      uuid        NOT NULL,
    host         text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    bundle       jsonb       NOT NULL
);

CREATE INDEX rma_bundles_node_idx ON rma_bundles (node_id, created_at);

-- +goose Down
DROP TABLE rma_bundles;
DROP TABLE machine_resets;
