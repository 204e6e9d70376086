-- +goose Up

-- The catalog of SKUs. A registration names one of them.
CREATE TABLE skus (
    name             text    CONSTRAINT skus_pkey PRIMARY KEY,
    active           boolean NOT NULL DEFAULT true,
    gpu_model        text    NOT NULL DEFAULT '',
    max_gpus         integer NOT NULL CONSTRAINT skus_max_gpus_check CHECK (max_gpus >= 0),
    min_cpus         integer NOT NULL CONSTRAINT skus_min_cpus_check CHECK (min_cpus >= 1),
    min_memory_bytes bigint  NOT NULL CONSTRAINT skus_min_memory_check CHECK (min_memory_bytes >= 0)
);

INSERT INTO skus (name, gpu_model, max_gpus, min_cpus, min_memory_bytes) VALUES
    ('h100',    'H100', 8, 32, 256::bigint << 30),
    ('a100',    'A100', 8, 16, 128::bigint << 30),
    ('cpu-dev', '',     0,  1, 512::bigint << 20);

-- One row per node. The row of a removed node is kept as a tombstone.
CREATE TABLE nodes (
    node_id     uuid        CONSTRAINT nodes_pkey PRIMARY KEY,
    host        text        NOT NULL CONSTRAINT nodes_host_check CHECK (host <> ''),
    state       text        NOT NULL CONSTRAINT nodes_state_check CHECK (state IN (
                    'registered', 'bootstrap_issued', 'enrolling', 'active', 'offline', 'quarantined',
                    'draining', 'drained', 'retired', 'removing', 'removed')),
    state_since timestamptz NOT NULL DEFAULT now(),
    cordoned    boolean     NOT NULL DEFAULT false,

    -- The fence. Every claim increments it. A write of an operation carries the
    -- op_seq of its claim and changes nothing once a newer one was allocated.
    op_seq       bigint NOT NULL DEFAULT 0,
    -- The operation that holds the node. The lock itself is the workflow id.
    operation_id uuid,

    -- The identity's generation. Certificates and tasks of an older incarnation
    -- are void.
    incarnation        bigint NOT NULL DEFAULT 1 CONSTRAINT nodes_incarnation_check CHECK (incarnation >= 1),
    -- The last incarnation that made an authenticated poll; 0 if none did.
    polled_incarnation bigint NOT NULL DEFAULT 0,
    -- The incarnation's recovery key.
    recovery_key         bytea CONSTRAINT nodes_recovery_key_check CHECK (octet_length(recovery_key) = 32),
    -- The sequence of the last issued identity, used or not.
    identity_sequence    bigint NOT NULL DEFAULT 0,
    identity_locked_at   timestamptz,
    identity_lock_reason text   NOT NULL DEFAULT '',
    -- The version of the verifier set that the node's last poll named; 0 before
    -- the incarnation's first poll.
    set_version          bigint NOT NULL DEFAULT 0 CONSTRAINT nodes_set_version_check CHECK (set_version >= 0),

    sku             text    NOT NULL CONSTRAINT nodes_sku_fkey REFERENCES skus (name),
    gpus_total      integer NOT NULL CONSTRAINT nodes_gpus_total_check CHECK (gpus_total >= 0),
    region_code     text    NOT NULL,
    onboarding_mode text    NOT NULL, -- the provider's name
    lifecycle_class text    NOT NULL CONSTRAINT nodes_lifecycle_class_check
                    CHECK (lifecycle_class IN ('persistent', 'ephemeral', 'spot')),
    port            integer NOT NULL CONSTRAINT nodes_port_check CHECK (port BETWEEN 1 AND 65535),
    ssh_username    text    NOT NULL DEFAULT '',
    ssh_public_key  text    NOT NULL DEFAULT '',
    -- The operators' own properties, by which they select nodes.
    labels          jsonb   NOT NULL DEFAULT '{}' CONSTRAINT nodes_labels_check CHECK (jsonb_typeof(labels) = 'object'),

    -- Reported by the agent.
    last_heartbeat_at timestamptz,
    agent_version     text   NOT NULL DEFAULT '',
    boot_id           text   NOT NULL DEFAULT '',
    agent_fault       text   NOT NULL DEFAULT '', -- why it accepts no tasks
    uptime_seconds    bigint NOT NULL DEFAULT 0,
    workloads         jsonb  NOT NULL DEFAULT '[]',
    -- When the agent observed the workloads, by the node's clock: a heartbeat
    -- that a task result overtook must not undo the result.
    workloads_at      timestamptz,
    facts             jsonb,

    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT nodes_identity_lock_check CHECK ((identity_locked_at IS NULL) = (identity_lock_reason = ''))
) WITH (fillfactor = 70); -- heartbeats update rows in place

-- A host name may be reused once its node was removed.
CREATE UNIQUE INDEX nodes_host_live_key ON nodes (lower(host)) WHERE state <> 'removed';
-- Serves LIKE in every locale, and equality.
CREATE INDEX nodes_host_idx ON nodes (lower(host) text_pattern_ops);
CREATE INDEX nodes_state_idx ON nodes (state);
-- The order of the node list.
CREATE INDEX nodes_page_idx ON nodes (host, node_id);
CREATE INDEX nodes_labels_idx ON nodes USING gin (labels jsonb_path_ops);

-- The machines behind a node. Terminated ones are kept.
CREATE TABLE instances (
    instance_id uuid        CONSTRAINT instances_pkey PRIMARY KEY,
    node_id     uuid        NOT NULL CONSTRAINT instances_node_fkey REFERENCES nodes (node_id),
    provider    text        NOT NULL,
    external_id text        NOT NULL DEFAULT '',
    state       text        NOT NULL CONSTRAINT instances_state_check CHECK (state IN (
                    'pending', 'provisioning', 'bootstrapping', 'running', 'draining', 'terminating', 'terminated')),
    state_since timestamptz NOT NULL DEFAULT now(),
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE UNIQUE INDEX instances_node_live_key ON instances (node_id) WHERE state <> 'terminated';
CREATE INDEX instances_node_idx ON instances (node_id, created_at DESC);

-- +goose Down
DROP TABLE instances;
DROP TABLE nodes;
DROP TABLE skus;
