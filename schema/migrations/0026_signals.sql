-- +goose Up

-- When instance.silent was recorded for the node; NULL after the next heartbeat.
ALTER TABLE nodes ADD COLUMN silent_at timestamptz;

-- The last report of each reporter about a node. An unchanged report updates only this row.
CREATE TABLE health_reports (
    node_id     uuid        NOT NULL CONSTRAINT health_reports_node_fkey REFERENCES nodes (node_id),
    source      text        NOT NULL CONSTRAINT health_reports_source_check CHECK (source IN ('agent', 'cluster-agent')),
    incarnation bigint      NOT NULL, -- of the node when it reported
    boot_id     text        NOT NULL,
    at          timestamptz NOT NULL, -- by the reporter's clock
    reported_at timestamptz NOT NULL, -- by the database's clock
    digest      bytea       NOT NULL, -- of the conditions
    CONSTRAINT health_reports_pkey PRIMARY KEY (node_id, source)
) WITH (fillfactor = 70);

-- The conditions of each reporter's last report.
CREATE TABLE conditions (
    node_id   uuid        NOT NULL CONSTRAINT conditions_node_fkey REFERENCES nodes (node_id),
    source    text        NOT NULL CONSTRAINT conditions_source_check CHECK (source IN ('agent', 'cluster-agent')),
    checker   text        NOT NULL,
    component text        NOT NULL, -- '' for the node
    status    text        NOT NULL CONSTRAINT conditions_status_check CHECK (status IN ('healthy', 'unhealthy', 'unknown')),
    reason    text        NOT NULL,
    code      integer     NOT NULL,
    repair    text        NOT NULL,
    detail    text        NOT NULL, -- reported by the node: untrusted
    since     timestamptz NOT NULL, -- of the status, by the database's clock
    samples   integer     NOT NULL, -- outdated while the status is not unhealthy
    -- Of the fault that an unknown condition interrupts; year 1 and 0 for none.
    fault_since     timestamptz NOT NULL,
    fault_samples   integer     NOT NULL,
    unknown_seconds bigint      NOT NULL, -- of the time since the fault began
    CONSTRAINT conditions_pkey PRIMARY KEY (node_id, source, checker, component)
);

CREATE INDEX conditions_unhealthy_idx ON conditions (node_id) WHERE status = 'unhealthy';

-- The events of nodes. Rows are added, and retention deletes them.
CREATE TABLE signals (
    signal_id   uuid        CONSTRAINT signals_pkey PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    node_id     uuid        NOT NULL CONSTRAINT signals_node_fkey REFERENCES nodes (node_id),
    instance_id uuid, -- the node's live instance at that time
    type        text        NOT NULL,
    source      text        NOT NULL,
    status      text        NOT NULL,
    component   text        NOT NULL,
    reason      text        NOT NULL,
    code        integer     NOT NULL,
    repair      text        NOT NULL,
    boot_id     text        NOT NULL,
    detail      text        NOT NULL -- may be reported by the node: untrusted
);

-- The lists of one node, of all nodes, and of one type.
CREATE INDEX signals_node_idx ON signals (node_id, at DESC, signal_id DESC);
CREATE INDEX signals_at_idx ON signals (at DESC, signal_id DESC);
CREATE INDEX signals_type_idx ON signals (type, at DESC, signal_id DESC);

-- How many signals each node has caused in an hour. Beyond a limit they are only counted, in the
-- detail of one signal.
CREATE TABLE signal_counts (
    node_id   uuid        CONSTRAINT signal_counts_pkey PRIMARY KEY
                          CONSTRAINT signal_counts_node_fkey REFERENCES nodes (node_id),
    hour      timestamptz NOT NULL,
    recorded  integer     NOT NULL,
    dropped   integer     NOT NULL,
    signal_id uuid -- the signal with the number of dropped ones; NULL without one
);

-- +goose Down
DROP TABLE signal_counts;
DROP TABLE signals;
DROP TABLE conditions;
DROP TABLE health_reports;
ALTER TABLE nodes DROP COLUMN silent_at;
