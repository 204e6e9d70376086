-- +goose Up

-- A node whose machine is being terminated.
ALTER TABLE nodes DROP CONSTRAINT nodes_state_check,
    ADD CONSTRAINT nodes_state_check CHECK (state IN (
        'registered', 'bootstrap_issued', 'enrolling', 'active', 'offline', 'quarantined',
        'draining', 'drained', 'retired', 'terminating', 'removing', 'removed')) NOT VALID;

-- +goose Down
UPDATE nodes SET state = 'offline' WHERE state = 'terminating';
ALTER TABLE nodes DROP CONSTRAINT nodes_state_check,
    ADD CONSTRAINT nodes_state_check CHECK (state IN (
        'registered', 'bootstrap_issued', 'enrolling', 'active', 'offline', 'quarantined',
        'draining', 'drained', 'retired', 'removing', 'removed'));
