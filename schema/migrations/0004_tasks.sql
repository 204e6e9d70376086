-- +goose Up

-- Work for nodes. One row per operation and step, so a dispatch that runs twice
-- finds its own row. A task is offered once its signed envelope is attached.
CREATE TABLE node_tasks (
    task_id      uuid   CONSTRAINT node_tasks_pkey PRIMARY KEY,
    node_id      uuid   NOT NULL CONSTRAINT node_tasks_node_fkey REFERENCES nodes (node_id),
    incarnation  bigint NOT NULL,
    seq          bigint NOT NULL, -- rising per node: the order of work
    type         text   NOT NULL,
    effect       text   NOT NULL CONSTRAINT node_tasks_effect_check
                     CHECK (effect IN ('read', 'idempotent', 'destructive')),
    status       text   NOT NULL DEFAULT 'pending' CONSTRAINT node_tasks_status_check CHECK (status IN (
                     'pending', 'dispatched', 'running', 'succeeded', 'failed', 'cancelled', 'lost')),
    params       jsonb,
    operation_id uuid   NOT NULL CONSTRAINT node_tasks_operation_fkey REFERENCES operations (operation_id),
    op_seq       bigint NOT NULL,
    step         text   NOT NULL,
    deadline     timestamptz,
    correlation_id text NOT NULL DEFAULT '',

    -- Bytes, not JSON: the signature is over them.
    envelope            bytea,
    envelope_expires_at timestamptz,

    -- Who holds the task. The epoch rises with every hand-over; a result that
    -- names another epoch comes from a lease that was lost.
    lease_epoch bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    progress    text   NOT NULL DEFAULT '',

    -- The activity that waits for the result.
    owner_workflow_id text NOT NULL,
    owner_run_id      text NOT NULL,
    owner_activity_id text NOT NULL,

    -- What the agent reported; NULL on a task that ended without a report.
    result        jsonb,
    created_at    timestamptz NOT NULL DEFAULT now(),
    attached_at   timestamptz,
    dispatched_at timestamptz, -- first hand-over
    finished_at   timestamptz,

    CONSTRAINT node_tasks_step_key UNIQUE (operation_id, step),
    CONSTRAINT node_tasks_seq_key UNIQUE (node_id, seq),
    CONSTRAINT node_tasks_envelope_check CHECK ((envelope IS NULL) = (envelope_expires_at IS NULL)),
    CONSTRAINT node_tasks_lease_check
        CHECK (status NOT IN ('dispatched', 'running') OR (lease_until IS NOT NULL AND envelope IS NOT NULL)),
    CONSTRAINT node_tasks_finished_check
        CHECK ((finished_at IS NOT NULL) = (status IN ('succeeded', 'failed', 'cancelled', 'lost')))
) WITH (fillfactor = 80);

CREATE INDEX node_tasks_open_idx ON node_tasks (node_id, seq) WHERE status IN ('pending', 'dispatched', 'running');

-- Messages for Temporal, committed with the change they speak of: either the
-- result of a task for the activity that waits, or an event for a workflow. A
-- result is read from its task, so it is stored once.
CREATE TABLE outbox (
    id          bigint      GENERATED ALWAYS AS IDENTITY CONSTRAINT outbox_pkey PRIMARY KEY,
    task_id     uuid        CONSTRAINT outbox_task_key UNIQUE
                            CONSTRAINT outbox_task_fkey REFERENCES node_tasks (task_id),
    workflow_id text        NOT NULL,
    event       jsonb,
    attempts    integer     NOT NULL DEFAULT 0,
    next_try_at timestamptz NOT NULL DEFAULT now(),
    last_error  text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    orphaned_at timestamptz, -- nobody waits for it any more: kept and visible

    CONSTRAINT outbox_content_check CHECK ((task_id IS NULL) <> (event IS NULL))
);

CREATE INDEX outbox_due_idx ON outbox (next_try_at) WHERE orphaned_at IS NULL;

-- +goose Down
DROP TABLE outbox;
DROP TABLE node_tasks;
