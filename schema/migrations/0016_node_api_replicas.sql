-- +goose Up

-- The replicas of the node API that recorded that they receive requests, each with the
-- trust.BundleDigest of the node CAs that it accepts, '' if it has not read them.
CREATE TABLE node_api_replicas (
    replica_id uuid        CONSTRAINT node_api_replicas_pkey PRIMARY KEY,
    node_cas   text        NOT NULL,
    seen_at    timestamptz NOT NULL
);

-- +goose Down
DROP TABLE node_api_replicas;
