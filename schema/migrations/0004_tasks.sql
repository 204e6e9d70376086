-- +goose Up

-- Domains, because Postgres parses the check constraints of a table for every
-- statement that writes to it, and those of a domain once per connection.
CREATE DOMAIN task_status AS text CONSTRAINT node_tasks_status_check CHECK (VALUE IN (
    'pending', 'dispatched', 'running', 'succeeded', 'failed', 'cancelled', 'lost'));
CREATE DOMAIN task_effect AS text CONSTRAINT node_tasks_effect_check CHECK (VALUE IN ('read', 'idempotent', 'destructive'));

-- Tasks of nodes. There is one row per operation and step, so a step that runs
-- twice finds its row. Rows are not deleted: the greatest seq of a node is that of
-- its last task. There are no foreign keys: the one statement that inserts a task joins
-- its node and operation, which are never deleted, and each key costs every insert a
-- query. After a partial restore, the reclaimer voids a task without its operation, and
-- the relay keeps a message without its task as orphaned. Rules between columns are
-- enforced by the few statements that write them (schema/queries/tasks.sql), because
-- Postgres parses check constraints of a table again for every write.
CREATE TABLE node_tasks (
    task_id      uuid   CONSTRAINT node_tasks_pkey PRIMARY KEY,
    node_id      uuid   NOT NULL,
    incarnation  bigint NOT NULL,
    seq          bigint NOT NULL, -- rises per node: the order of dispatch
    type         text   NOT NULL,
    effect       task_effect NOT NULL,
    status       task_status NOT NULL DEFAULT 'pending',
    params       jsonb,
    operation_id uuid   NOT NULL,
    op_seq       bigint NOT NULL,
    step         text   NOT NULL,
    deadline     timestamptz,
    correlation_id text NOT NULL DEFAULT '',

    -- Bytes, not JSON: they are signed.
    envelope            bytea       NOT NULL,
    envelope_expires_at timestamptz NOT NULL,
    body_sha256         text        NOT NULL, -- hex, of the signed body

    -- The lease. Each dispatch increments the epoch; a result with another epoch
    -- comes from a lost lease.
    lease_epoch bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    holder      text   NOT NULL DEFAULT '', -- the agent process of the newest lease
    poll_number bigint NOT NULL DEFAULT 0,  -- the holder's poll that got the newest lease; 0 if it does not count
    progress    text   NOT NULL DEFAULT '',
    beat_at     timestamptz,                -- the last progress that was recorded as a heartbeat; NULL before the lease's first

    -- The activity that waits for the result, and the response to its last
    -- heartbeat.
    owner_workflow_id text    NOT NULL,
    owner_run_id      text    NOT NULL,
    owner_activity_id text    NOT NULL,
    cancel_seen       boolean NOT NULL DEFAULT false,
    paused            boolean NOT NULL DEFAULT false,

    -- An operator's request to cancel.
    cancel_reason       text NOT NULL DEFAULT '',
    cancel_requested_at timestamptz,

    -- The agent's report; NULL if the task ended without one. The output's tail
    -- is apart so that deliveries do not read it.
    result      jsonb,
    output_tail text NOT NULL DEFAULT '',
    -- The signature of the result and the signer's key, which allow a check after
    -- the certificate is gone.
    result_serial    text,
    result_key       bytea, -- public, PKIX in DER
    result_body      bytea, -- bytes, not JSON: they are signed
    result_signature bytea,

    created_at    timestamptz NOT NULL DEFAULT now(),
    dispatched_at timestamptz, -- first dispatch
    lost_at       timestamptz, -- a lost task is not finished
    finished_at   timestamptz,

    CONSTRAINT node_tasks_step_key UNIQUE (operation_id, step),
    CONSTRAINT node_tasks_seq_key UNIQUE (node_id, seq)
) WITH (fillfactor = 80);

-- No index has a column that a dispatch or a progress changes, so both update the
-- row in place.
CREATE INDEX node_tasks_open_idx ON node_tasks (node_id, seq) WHERE finished_at IS NULL;
-- The order of the task list.
CREATE INDEX node_tasks_page_idx ON node_tasks (created_at, task_id);

-- Messages for Temporal, committed with the change they report: either the result
-- of a task for its activity or an event for a workflow. The relay reads a result
-- from its task.
CREATE TABLE outbox (
    id          bigint      GENERATED ALWAYS AS IDENTITY CONSTRAINT outbox_pkey PRIMARY KEY,
    task_id     uuid        CONSTRAINT outbox_task_key UNIQUE,
    workflow_id text        NOT NULL,
    event       jsonb,
    attempts    integer     NOT NULL DEFAULT 0,
    next_try_at timestamptz NOT NULL DEFAULT now(),
    last_error  text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    redelivered_at timestamptz, -- when the reclaimer last made it due at once
    orphaned_at timestamptz,    -- its workflow is gone: kept for inspection

    CONSTRAINT outbox_content_check CHECK ((task_id IS NULL) <> (event IS NULL))
);

CREATE INDEX outbox_due_idx ON outbox (next_try_at) WHERE orphaned_at IS NULL;

-- +goose Down
DROP TABLE outbox;
DROP TABLE node_tasks;
DROP DOMAIN task_effect;
DROP DOMAIN task_status;
