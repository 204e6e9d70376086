-- +goose Up

-- The sessions of the operator console. No value in a row opens a session: id is the SHA-256 of
-- the cookie's value, and token_hash that of the admin token.
CREATE TABLE console_sessions (
    id           bytea       CONSTRAINT console_sessions_pkey PRIMARY KEY CONSTRAINT console_sessions_id_check CHECK (length(id) = 32),
    token_hash   bytea       NOT NULL CONSTRAINT console_sessions_token_check CHECK (length(token_hash) = 32),
    subject      text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);

CREATE INDEX console_sessions_expires_idx ON console_sessions (expires_at);

-- +goose Down
DROP TABLE console_sessions;
