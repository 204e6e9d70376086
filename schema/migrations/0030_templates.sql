-- +goose Up

-- The templates: what the nodes of an SKU or a lifecycle class must run. The row of a deleted one
-- stays, so that a later one with its name continues with the next version.
CREATE TABLE templates (
    name          text        CONSTRAINT templates_pkey PRIMARY KEY,
    version       bigint      NOT NULL,
    artifacts     jsonb       NOT NULL, -- declared versions and digests by name
    managed       text[]      NOT NULL, -- names that nodes must not report unless they are declared
    policy        text        NOT NULL CONSTRAINT templates_policy_check CHECK (policy IN ('notify', 'notify_and_proceed')),
    agent_release text        NOT NULL, -- signed document of the declared agent, for notify_and_proceed; '' for none
    updated_at    timestamptz NOT NULL DEFAULT now(),
    updated_by    text        NOT NULL,
    deleted_at    timestamptz
);

-- An SKU and a class have one template at most.
CREATE TABLE template_assignments (
    kind     text NOT NULL CONSTRAINT template_assignments_kind_check CHECK (kind IN ('sku', 'class')),
    value    text NOT NULL,
    template text NOT NULL CONSTRAINT template_assignments_template_fkey REFERENCES templates (name),
    CONSTRAINT template_assignments_pkey PRIMARY KEY (kind, value)
);

-- What nodes reported last.
CREATE TABLE node_artifacts (
    node_id     uuid        CONSTRAINT node_artifacts_pkey PRIMARY KEY CONSTRAINT node_artifacts_node_fkey REFERENCES nodes (node_id),
    incarnation bigint      NOT NULL, -- of the node when it reported
    artifacts   jsonb       NOT NULL, -- untrusted
    reported_at timestamptz NOT NULL
);

-- The nodes that differ from their template, as the last scan found.
CREATE TABLE node_drifts (
    node_id        uuid        CONSTRAINT node_drifts_pkey PRIMARY KEY CONSTRAINT node_drifts_node_fkey REFERENCES nodes (node_id),
    template       text        NOT NULL,
    version        bigint      NOT NULL,
    drift          jsonb       NOT NULL, -- the lists attach, detach and update; reported versions are untrusted
    upgrade        text        NOT NULL, -- the version of the agent that corrects a part; '' for none
    since          timestamptz NOT NULL DEFAULT now(), -- of the drift, whatever its differences
    -- The operation that the policy started for the upgrade, and why it was refused.
    remedy         uuid,
    remedy_at      timestamptz,
    remedy_upgrade text        NOT NULL DEFAULT '',
    remedy_refused text        NOT NULL DEFAULT ''
);

CREATE INDEX node_drifts_remedy_idx ON node_drifts (remedy) WHERE remedy IS NOT NULL;

-- +goose Down
DROP TABLE node_drifts;
DROP TABLE node_artifacts;
DROP TABLE template_assignments;
DROP TABLE templates;
