-- +goose Up

-- A drift that ended keeps its row if the policy started an upgrade for it, so that the upgrade is not
-- started again when the node differs again. remedy_incarnation is that of the node when it was chosen.
ALTER TABLE node_drifts ADD COLUMN ended_at timestamptz, ADD COLUMN remedy_incarnation bigint;

-- +goose Down
ALTER TABLE node_drifts DROP COLUMN ended_at, DROP COLUMN remedy_incarnation;
