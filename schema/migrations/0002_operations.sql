-- +goose Up

-- The projection of lifecycle workflows: what lists and gauges read. Temporal
-- owns what is happening; a row here never decides that.
CREATE TABLE operations (
    operation_id   uuid        CONSTRAINT operations_pkey PRIMARY KEY,
    node_id        uuid        NOT NULL CONSTRAINT operations_node_fkey REFERENCES nodes (node_id),
    op_seq         bigint      NOT NULL,
    action         text        NOT NULL CONSTRAINT operations_action_check CHECK (action IN (
                       'enroll', 'provision', 'drain', 'retire', 'reactivate', 'remove')),
    status         text        NOT NULL CONSTRAINT operations_status_check CHECK (status IN (
                       'accepted', 'running', 'parked', 'completed', 'failed', 'cancelled')),
    phase          text        NOT NULL DEFAULT '',
    step           bigint      NOT NULL DEFAULT 0, -- the last advance that counted
    stuck          jsonb,                          -- why it is parked
    decision       jsonb,                          -- the last decision of the phase, to tell a repeat
    actor          text        NOT NULL,
    reason         text        NOT NULL DEFAULT '',
    correlation_id text        NOT NULL DEFAULT '',
    workflow_id    text        NOT NULL,
    run_id         text        NOT NULL,
    -- What the claim answered, so that the same claim again answers the same.
    claim          jsonb       NOT NULL,
    outcome        text        NOT NULL DEFAULT '',
    started_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,

    CONSTRAINT operations_node_op_seq_key UNIQUE (node_id, op_seq),
    CONSTRAINT operations_ended_check
        CHECK ((ended_at IS NULL) = (status IN ('accepted', 'running', 'parked'))),
    CONSTRAINT operations_stuck_check CHECK ((stuck IS NOT NULL) = (status = 'parked'))
);

-- A claim ends what a dead run left open, so a node has one open operation.
CREATE UNIQUE INDEX operations_node_open_key ON operations (node_id) WHERE ended_at IS NULL;
CREATE INDEX operations_started_idx ON operations (started_at);

-- What of a node exists outside. A row is planned before the outside call, so
-- that whatever a crash leaves behind is on the list that teardown walks.
CREATE TABLE resources (
    resource_id  uuid        CONSTRAINT resources_pkey PRIMARY KEY,
    node_id      uuid        NOT NULL CONSTRAINT resources_node_fkey REFERENCES nodes (node_id),
    operation_id uuid        NOT NULL CONSTRAINT resources_operation_fkey REFERENCES operations (operation_id),
    kind         text        NOT NULL,
    provider     text        NOT NULL,
    external_id  text        NOT NULL DEFAULT '',
    state        text        NOT NULL CONSTRAINT resources_state_check
                     CHECK (state IN ('planned', 'created', 'released')),
    planned_at   timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz,
    released_at  timestamptz,

    CONSTRAINT resources_released_check CHECK ((released_at IS NOT NULL) = (state = 'released'))
);

CREATE INDEX resources_node_open_idx ON resources (node_id) WHERE state <> 'released';

-- +goose Down
DROP TABLE resources;
DROP TABLE operations;
