-- +goose Up

-- One row per operation: the record of a lifecycle workflow's progress. Temporal
-- runs the workflow; this row is what lists, gauges and history read.
CREATE TABLE operations (
    operation_id   uuid        CONSTRAINT operations_pkey PRIMARY KEY,
    node_id        uuid        NOT NULL CONSTRAINT operations_node_fkey REFERENCES nodes (node_id),
    -- The fence that the claim allocated; 0 for an operation that does not hold
    -- its node, such as a reissue.
    op_seq         bigint      NOT NULL CONSTRAINT operations_op_seq_check CHECK (op_seq >= 0),
    action         text        NOT NULL,
    status         text        NOT NULL CONSTRAINT operations_status_check CHECK (status IN (
                       'accepted', 'running', 'parked', 'completed', 'failed', 'cancelled')),
    phase          text        NOT NULL DEFAULT '',
    step           bigint      NOT NULL DEFAULT 0, -- the last recorded advance
    stuck          jsonb,                          -- why it is parked
    -- The whole status document as of the last progress, and the deadline in it.
    document       jsonb,
    deadline_at    timestamptz,                    -- kept by a trigger
    actor          text        NOT NULL,
    via            text        NOT NULL DEFAULT '', -- the interface of the request: api or temporal
    reason         text        NOT NULL DEFAULT '',
    correlation_id text        NOT NULL DEFAULT '',
    workflow_id    text        NOT NULL,
    -- The run that made the claim, and the run that took over after a reset in
    -- Temporal, if any.
    run_id         text        NOT NULL,
    latest_run_id  text,
    -- The claim's response, which a repeated claim returns again.
    claim          jsonb       NOT NULL,
    outcome        text        NOT NULL DEFAULT '',
    started_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(), -- kept by a trigger

    CONSTRAINT operations_ended_check
        CHECK ((ended_at IS NULL) = (status IN ('accepted', 'running', 'parked'))),
    CONSTRAINT operations_stuck_check CHECK ((stuck IS NOT NULL) = (status = 'parked'))
);

CREATE UNIQUE INDEX operations_node_op_seq_key ON operations (node_id, op_seq) WHERE op_seq > 0;
-- A node has at most one open operation that holds it and one that does not.
CREATE UNIQUE INDEX operations_node_open_key ON operations (node_id) WHERE ended_at IS NULL AND op_seq > 0;
CREATE UNIQUE INDEX operations_reissue_open_key ON operations (node_id) WHERE ended_at IS NULL AND op_seq = 0;
-- The open operations of a node, and of all nodes: those that may need attention.
CREATE INDEX operations_node_unended_idx ON operations (node_id) WHERE ended_at IS NULL;
-- The order of the operation list, of all nodes and of one.
CREATE INDEX operations_page_idx ON operations (started_at, operation_id);
CREATE INDEX operations_node_page_idx ON operations (node_id, started_at, operation_id);
CREATE INDEX operations_changed_idx ON operations (changed_at);

-- The event stream reads operations by their last change, and lists read the
-- deadline without the document.
-- +goose StatementBegin
CREATE FUNCTION operations_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.changed_at := clock_timestamp();
    NEW.deadline_at := CASE WHEN NEW.ended_at IS NULL THEN (NEW.document #>> '{operation,deadline_at}')::timestamptz END;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER operations_changed BEFORE INSERT OR UPDATE ON operations FOR EACH ROW EXECUTE FUNCTION operations_changed();

-- The ledger of a node's resources at providers. A row is planned before the
-- outside call, so that teardown finds everything a crash may leave behind.
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
DROP FUNCTION operations_changed();
