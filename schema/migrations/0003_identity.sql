-- +goose Up

-- Tokens of four purposes. Only the secret's hash is stored. A claim binds the
-- token to the key of the CSR, so the same key may retry after a lost response
-- and another key cannot replay it. The certificate's first use consumes it.
--
-- enroll and reissue: one live token per node and purpose; a reissue carries the
-- incarnation that its claim starts. recover: lives as long as its certificate,
-- or until the certificate issued with it is used. fetch: a one-time reference to
-- a bundle of bundle_purpose.
CREATE TABLE enrollment_tokens (
    token_id       uuid        CONSTRAINT enrollment_tokens_pkey PRIMARY KEY,
    node_id        uuid        NOT NULL CONSTRAINT enrollment_tokens_node_fkey REFERENCES nodes (node_id),
    incarnation    bigint      NOT NULL,
    purpose        text        NOT NULL CONSTRAINT enrollment_tokens_purpose_check
                       CHECK (purpose IN ('enroll', 'reissue', 'recover', 'fetch')),
    bundle_purpose text,
    state          text        NOT NULL DEFAULT 'issued' CONSTRAINT enrollment_tokens_state_check
                       CHECK (state IN ('issued', 'claimed', 'consumed', 'voided')),
    secret_hash    bytea       NOT NULL CONSTRAINT enrollment_tokens_hash_check CHECK (octet_length(secret_hash) = 32),
    claimed_spki   text,
    issued_at      timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz NOT NULL,
    claimed_at     timestamptz,
    ended_at       timestamptz,

    CONSTRAINT enrollment_tokens_bundle_check CHECK (
        (bundle_purpose IS NOT NULL) = (purpose = 'fetch') AND bundle_purpose IN ('enroll', 'reissue')),
    CONSTRAINT enrollment_tokens_claimed_check CHECK (
        purpose = 'fetch' OR state IN ('issued', 'voided') OR (claimed_spki IS NOT NULL AND claimed_at IS NOT NULL)),
    CONSTRAINT enrollment_tokens_ended_check
        CHECK ((ended_at IS NOT NULL) = (state IN ('consumed', 'voided')))
);

CREATE UNIQUE INDEX enrollment_tokens_live_key ON enrollment_tokens (node_id, purpose)
    WHERE state IN ('issued', 'claimed') AND purpose <> 'recover';
CREATE INDEX enrollment_tokens_node_idx ON enrollment_tokens (node_id);

-- Certificates of nodes. A node has at most one current and one pending
-- certificate. The first use of the pending one makes it current, so a lost
-- response locks no node out. A used certificate ends as retired and an unused
-- one as replaced: the reappearance of a retired one proves a clone, that of a
-- replaced one follows a lost response.
CREATE TABLE node_certificates (
    node_id     uuid        NOT NULL CONSTRAINT node_certificates_node_fkey REFERENCES nodes (node_id),
    serial      text        NOT NULL,
    incarnation bigint      NOT NULL,
    slot        text        NOT NULL CONSTRAINT node_certificates_slot_check
                    CHECK (slot IN ('pending', 'current', 'retired', 'replaced')),
    subject     text        NOT NULL,
    uri         text        NOT NULL,
    issuer      text        NOT NULL,
    fingerprint text        NOT NULL,
    spki        text        NOT NULL,
    not_before  timestamptz NOT NULL,
    not_after   timestamptz NOT NULL,
    token_id    uuid        CONSTRAINT node_certificates_token_fkey REFERENCES enrollment_tokens (token_id),
    via         text        NOT NULL CONSTRAINT node_certificates_via_check CHECK (via IN ('enroll', 'renew', 'recover')),
    sequence    bigint      NOT NULL, -- rises with each identity of an incarnation
    recovery_token_id uuid  CONSTRAINT node_certificates_recovery_key UNIQUE
                    CONSTRAINT node_certificates_recovery_fkey REFERENCES enrollment_tokens (token_id),
    -- The key that claimed the renewal of this certificate.
    renewal_spki text,
    renewal_at   timestamptz,
    issued_at   timestamptz NOT NULL DEFAULT now(),
    promoted_at timestamptz,
    retired_at  timestamptz,

    CONSTRAINT node_certificates_pkey PRIMARY KEY (node_id, serial),
    CONSTRAINT node_certificates_retired_check CHECK ((retired_at IS NOT NULL) = (slot IN ('retired', 'replaced')))
);

CREATE UNIQUE INDEX node_certificates_slot_key ON node_certificates (node_id, slot) WHERE slot IN ('pending', 'current');

-- The permanent owner of each key: two nodes with one key are clones.
CREATE TABLE identity_keys (
    spki       text        CONSTRAINT identity_keys_pkey PRIMARY KEY,
    node_id    uuid        NOT NULL CONSTRAINT identity_keys_node_fkey REFERENCES nodes (node_id),
    first_seen timestamptz NOT NULL DEFAULT now()
);

-- When a refusal was last audited: at most one audit row a minute per node and
-- reason. The reason of a refused task result includes the task's ID. The reclaimer deletes
-- older rows. No foreign key: after a restore a certificate may name an unknown node.
CREATE TABLE identity_refusals (
    node_id     uuid        NOT NULL,
    reason      text        NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT identity_refusals_pkey PRIMARY KEY (node_id, reason)
);

-- Signed verifier sets. Every version is kept: a node that was offline walks
-- them, each by the hash of its predecessor.
CREATE TABLE verifier_sets (
    version   bigint CONSTRAINT verifier_sets_pkey PRIMARY KEY CONSTRAINT verifier_sets_version_check CHECK (version >= 1),
    epoch     bigint NOT NULL,
    hash      text   NOT NULL CONSTRAINT verifier_sets_hash_key UNIQUE
              CONSTRAINT verifier_sets_hash_check CHECK (hash ~ '^[0-9a-f]{64}$'),
    -- Empty for the first version; unique, so the chain cannot fork.
    prev_hash text   NOT NULL CONSTRAINT verifier_sets_prev_key UNIQUE
              CONSTRAINT verifier_sets_prev_check CHECK (prev_hash ~ '^[0-9a-f]{64}$' OR (version = 1 AND prev_hash = '')),
    document  bytea  NOT NULL, -- bytes, not JSON: they are signed
    stored_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE verifier_sets;
DROP TABLE identity_refusals;
DROP TABLE identity_keys;
DROP TABLE node_certificates;
DROP TABLE enrollment_tokens;
