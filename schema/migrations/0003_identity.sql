-- +goose Up

-- Enrolment tokens. Only the secret's hash is kept. A claim binds the token to
-- the CSR's key, so that a lost answer can be asked for again and a replay with
-- another key cannot; the certificate's first use consumes it.
CREATE TABLE enrollment_tokens (
    token_id     uuid        CONSTRAINT enrollment_tokens_pkey PRIMARY KEY,
    node_id      uuid        NOT NULL CONSTRAINT enrollment_tokens_node_fkey REFERENCES nodes (node_id),
    incarnation  bigint      NOT NULL,
    purpose      text        NOT NULL CONSTRAINT enrollment_tokens_purpose_check CHECK (purpose IN ('enroll')),
    state        text        NOT NULL DEFAULT 'issued' CONSTRAINT enrollment_tokens_state_check
                     CHECK (state IN ('issued', 'claimed', 'consumed', 'voided')),
    secret_hash  bytea       NOT NULL CONSTRAINT enrollment_tokens_hash_check CHECK (octet_length(secret_hash) = 32),
    claimed_spki text,
    issued_at    timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    claimed_at   timestamptz,
    ended_at     timestamptz,

    CONSTRAINT enrollment_tokens_claimed_check
        CHECK (state IN ('issued', 'voided') OR (claimed_spki IS NOT NULL AND claimed_at IS NOT NULL)),
    CONSTRAINT enrollment_tokens_ended_check
        CHECK ((ended_at IS NOT NULL) = (state IN ('consumed', 'voided')))
);

CREATE UNIQUE INDEX enrollment_tokens_live_key ON enrollment_tokens (node_id, purpose)
    WHERE state IN ('issued', 'claimed');

-- Certificates of nodes. A node has at most one current and one pending; a
-- pending one becomes current at its first use, so an answer lost on the way
-- strands nobody. Retired ones are kept as evidence.
CREATE TABLE node_certificates (
    node_id     uuid        NOT NULL CONSTRAINT node_certificates_node_fkey REFERENCES nodes (node_id),
    serial      text        NOT NULL,
    incarnation bigint      NOT NULL,
    slot        text        NOT NULL CONSTRAINT node_certificates_slot_check
                    CHECK (slot IN ('pending', 'current', 'retired')),
    subject     text        NOT NULL,
    uri         text        NOT NULL,
    issuer      text        NOT NULL,
    fingerprint text        NOT NULL,
    spki        text        NOT NULL,
    not_before  timestamptz NOT NULL,
    not_after   timestamptz NOT NULL,
    token_id    uuid        CONSTRAINT node_certificates_token_fkey REFERENCES enrollment_tokens (token_id),
    issued_at   timestamptz NOT NULL DEFAULT now(),
    promoted_at timestamptz,
    retired_at  timestamptz,

    CONSTRAINT node_certificates_pkey PRIMARY KEY (node_id, serial),
    CONSTRAINT node_certificates_retired_check CHECK ((retired_at IS NOT NULL) = (slot = 'retired'))
);

CREATE UNIQUE INDEX node_certificates_slot_key ON node_certificates (node_id, slot) WHERE slot <> 'retired';

-- When a refused identity was last put on record, so that a caller that asks
-- and asks makes one audit row a minute. No foreign key: a certificate may name
-- a node that a restored database does not know.
CREATE TABLE identity_refusals (
    node_id     uuid        NOT NULL,
    reason      text        NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT identity_refusals_pkey PRIMARY KEY (node_id, reason)
);

-- +goose Down
DROP TABLE identity_refusals;
DROP TABLE node_certificates;
DROP TABLE enrollment_tokens;
