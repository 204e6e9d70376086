-- +goose Up

-- The idempotency keys of requests whose result has no id derived from the key.
-- A key expires after a day; each use of a key deletes the expired ones.
CREATE TABLE request_keys (
    scope      text        NOT NULL, -- the endpoint and its object
    key        text        NOT NULL,
    subject    text        NOT NULL, -- who used it first
    result     text        NOT NULL DEFAULT '', -- an id, never a body
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT request_keys_pkey PRIMARY KEY (scope, key)
);

-- The order in which keys expire.
CREATE INDEX request_keys_created_idx ON request_keys (created_at);

-- +goose Down
DROP TABLE request_keys;
