-- +goose Up

-- The workload driver of the nodes of a SKU, unless they are registered with another one.
-- Empty for none. systemd runs on every host that the installer supports.
ALTER TABLE skus ADD COLUMN workload_driver text NOT NULL DEFAULT '';
UPDATE skus SET workload_driver = 'systemd' WHERE name IN ('h100', 'a100');

-- The workload driver that the node's bundles name, empty for none.
ALTER TABLE nodes ADD COLUMN workload_driver text NOT NULL DEFAULT '';
-- The workload driver that the agent uses, empty for none, and why it does not list the
-- workloads.
ALTER TABLE nodes ADD COLUMN driver text NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN driver_fault text NOT NULL DEFAULT '';

-- Whether the node's enrollment ends with a probe of its health.
ALTER TABLE nodes ADD COLUMN probe boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE nodes DROP COLUMN probe;
ALTER TABLE nodes DROP COLUMN driver_fault;
ALTER TABLE nodes DROP COLUMN driver;
ALTER TABLE nodes DROP COLUMN workload_driver;
ALTER TABLE skus DROP COLUMN workload_driver;
