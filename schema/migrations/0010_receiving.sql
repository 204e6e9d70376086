-- +goose Up

-- Since when any replica of the node API receives requests, and when one last recorded
-- that. Nodes cannot report while none does, so neither silence nor an expired lease
-- from that time proves anything. One row.
CREATE TABLE node_api (
    only_row        boolean     NOT NULL DEFAULT true CONSTRAINT node_api_pkey PRIMARY KEY
                                CONSTRAINT node_api_only_row_check CHECK (only_row),
    receiving_since timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL
);

-- Whether the node API receives requests now and has done so for the seconds. True if no
-- replica has ever recorded that it does: those of the previous version do not.
CREATE FUNCTION node_api_receiving(seconds double precision) RETURNS boolean LANGUAGE sql STABLE
    RETURN coalesce((SELECT seen_at > now() - interval '30 seconds' AND receiving_since <= now() - make_interval(secs => seconds)
                     FROM node_api), true);

-- +goose Down
DROP FUNCTION node_api_receiving;
DROP TABLE node_api;
