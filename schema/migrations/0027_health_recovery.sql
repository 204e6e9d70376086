-- +goose Up

-- The policies of health recovery. A row is never changed; the newest one is in use, and without
-- one the default policy, whose version is 0.
CREATE TABLE recovery_policies (
    version    bigint      CONSTRAINT recovery_policies_pkey PRIMARY KEY CONSTRAINT recovery_policies_version_check CHECK (version > 0),
    body       jsonb       NOT NULL,
    digest     text        NOT NULL, -- of the canonical JSON
    actor      text        NOT NULL,
    via        text        NOT NULL DEFAULT '',
    reason     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The decisions about nodes with a fault. There is a row only where a decision differs from the
-- node's previous one.
CREATE TABLE recovery_decisions (
    decision_id    uuid        CONSTRAINT recovery_decisions_pkey PRIMARY KEY,
    decided_at     timestamptz NOT NULL DEFAULT now(),
    node_id        uuid        NOT NULL CONSTRAINT recovery_decisions_node_fkey REFERENCES nodes (node_id),
    policy_version bigint      NOT NULL,
    mode           text        NOT NULL,
    phase          text        NOT NULL,
    fault          jsonb       NOT NULL,
    rung           text        NOT NULL,
    brake          text        NOT NULL,
    why            text        NOT NULL,
    -- The repair that it started; NULL if it started none. The operation may be older than a
    -- restored database, so this is no foreign key.
    operation_id   uuid
);

CREATE INDEX recovery_decisions_page_idx ON recovery_decisions (decided_at, decision_id);
CREATE INDEX recovery_decisions_node_idx ON recovery_decisions (node_id, decided_at, decision_id);

-- The nodes that are in a phase other than healthy, with their last decision.
CREATE TABLE recovery_states (
    node_id      uuid        CONSTRAINT recovery_states_pkey PRIMARY KEY CONSTRAINT recovery_states_node_fkey REFERENCES nodes (node_id),
    decision_id  uuid        NOT NULL CONSTRAINT recovery_states_decision_fkey REFERENCES recovery_decisions (decision_id),
    phase        text        NOT NULL,
    phase_since  timestamptz NOT NULL DEFAULT now(),
    -- The sentence of the last round, whose figures change more often than the decision.
    why          text        NOT NULL,
    -- Why the start of the last repair was rejected, and when.
    refused_at   timestamptz,
    refused      text        NOT NULL DEFAULT ''
);

CREATE INDEX recovery_states_decision_idx ON recovery_states (decision_id);

-- The rungs that repairs climbed, with their outcome and its proof. The first rung is written
-- before the operation is started.
CREATE TABLE recovery_attempts (
    operation_id uuid        NOT NULL,
    rung         text        NOT NULL,
    node_id      uuid        NOT NULL CONSTRAINT recovery_attempts_node_fkey REFERENCES nodes (node_id),
    sku          text        NOT NULL,
    fault        jsonb       NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    outcome      text        NOT NULL DEFAULT '' CONSTRAINT recovery_attempts_outcome_check
                     CHECK (outcome IN ('', 'cured', 'not_cured', 'failed', 'unknown', 'not_begun')),
    boot_before  text        NOT NULL DEFAULT '',
    boot_after   text        NOT NULL DEFAULT '',
    tests        jsonb       NOT NULL DEFAULT '[]',

    CONSTRAINT recovery_attempts_pkey PRIMARY KEY (operation_id, rung),
    CONSTRAINT recovery_attempts_ended_check CHECK ((ended_at IS NULL) = (outcome = ''))
);

CREATE INDEX recovery_attempts_node_idx ON recovery_attempts (node_id, started_at);
CREATE INDEX recovery_attempts_started_idx ON recovery_attempts (started_at);
CREATE INDEX recovery_attempts_open_idx ON recovery_attempts (operation_id) WHERE outcome = '';

-- The one ledger of budgets: which operations may disturb nodes at the same time. A reservation
-- counts for the fleet and for its SKU, rack and region until its operation ended or was
-- abandoned. It is made before the operation is started, so a reservation without an operation
-- counts for as long as the operation may still claim its node.
CREATE TABLE budget_reservations (
    operation_id uuid        CONSTRAINT budget_reservations_pkey PRIMARY KEY,
    purpose      text        NOT NULL CONSTRAINT budget_reservations_purpose_check CHECK (purpose IN ('repair', 'rollout')),
    node_id      uuid        NOT NULL CONSTRAINT budget_reservations_node_fkey REFERENCES nodes (node_id),
    sku          text        NOT NULL,
    rack         text        NOT NULL,
    region       text        NOT NULL,
    decision_id  uuid,
    -- The input of the operation, to start it after a crash, and when it was accepted.
    input        jsonb       NOT NULL,
    reserved_at  timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz
);

CREATE INDEX budget_reservations_node_idx ON budget_reservations (node_id);

-- The state between two rounds of DecideRepairs. One row, which a round locks.
CREATE TABLE recovery_breaker (
    only_row   boolean     NOT NULL DEFAULT true CONSTRAINT recovery_breaker_pkey PRIMARY KEY
                           CONSTRAINT recovery_breaker_only_row_check CHECK (only_row),
    breaker    jsonb       NOT NULL DEFAULT '{}', -- recovery.BreakerState
    incidents  jsonb       NOT NULL DEFAULT '[]',
    round      bigint      NOT NULL DEFAULT 0,
    decided_at  timestamptz
);

INSERT INTO recovery_breaker DEFAULT VALUES;

-- +goose Down
DROP TABLE recovery_breaker;
DROP TABLE budget_reservations;
DROP TABLE recovery_attempts;
DROP TABLE recovery_states;
DROP TABLE recovery_decisions;
DROP TABLE recovery_policies;
