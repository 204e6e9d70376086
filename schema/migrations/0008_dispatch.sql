-- +goose Up

-- Who holds a lease, what was asked of whoever does, and what of it is known to
-- the activity that waits. Attempts are the lease's epoch.
ALTER TABLE node_tasks
    ADD COLUMN holder  text        NOT NULL DEFAULT '', -- the agent's process, of the newest lease
    ADD COLUMN beat_at timestamptz,                     -- the last progress that became a heartbeat
    -- An operator's cancel, until the task is over.
    ADD COLUMN cancel_reason       text NOT NULL DEFAULT '',
    ADD COLUMN cancel_requested_at timestamptz,
    -- What the last heartbeat's answer said of the activity.
    ADD COLUMN told_cancel boolean NOT NULL DEFAULT false,
    ADD COLUMN paused      boolean NOT NULL DEFAULT false,
    -- The end of what the work printed, for people. Beside the result, so that
    -- no delivery reads it.
    ADD COLUMN output_tail text NOT NULL DEFAULT '' CONSTRAINT node_tasks_output_check
        CHECK (octet_length(output_tail) <= 65536),
    ADD CONSTRAINT node_tasks_cancel_check CHECK ((cancel_requested_at IS NULL) = (cancel_reason = ''));

-- What the reclaimer walks, by task. The lease's end is not in it: an index on
-- what every progress changes would make each of them write to all indexes.
CREATE INDEX node_tasks_unended_idx ON node_tasks (task_id) WHERE status IN ('pending', 'dispatched', 'running', 'lost');

-- When the reclaimer last made an old message due again.
ALTER TABLE outbox ADD COLUMN nudged_at timestamptz;

-- What the view of one node looks up.
CREATE INDEX operations_node_unended_idx ON operations (node_id) WHERE ended_at IS NULL;
CREATE INDEX instances_node_idx ON instances (node_id, created_at DESC);

-- Signed verifier sets, every version for ever: a node that comes back walks
-- them, each by the hash of the one before.
CREATE TABLE verifier_sets (
    version   bigint CONSTRAINT verifier_sets_pkey PRIMARY KEY CONSTRAINT verifier_sets_version_check CHECK (version >= 1),
    epoch     bigint NOT NULL,
    hash      text   NOT NULL CONSTRAINT verifier_sets_hash_key UNIQUE
              CONSTRAINT verifier_sets_hash_check CHECK (hash ~ '^[0-9a-f]{64}$'),
    -- Empty for the first; unique, so that no two follow one.
    prev_hash text   NOT NULL CONSTRAINT verifier_sets_prev_key UNIQUE
              CONSTRAINT verifier_sets_prev_check CHECK (prev_hash ~ '^[0-9a-f]{64}$' OR (version = 1 AND prev_hash = '')),
    document  bytea  NOT NULL, -- bytes, not JSON: the signature is over them
    stored_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE verifier_sets;
ALTER TABLE outbox DROP COLUMN nudged_at;
DROP INDEX instances_node_idx;
DROP INDEX operations_node_unended_idx;
DROP INDEX node_tasks_unended_idx;
ALTER TABLE node_tasks
    DROP CONSTRAINT node_tasks_cancel_check,
    DROP COLUMN output_tail, DROP COLUMN paused, DROP COLUMN told_cancel,
    DROP COLUMN cancel_requested_at, DROP COLUMN cancel_reason, DROP COLUMN beat_at, DROP COLUMN holder;
