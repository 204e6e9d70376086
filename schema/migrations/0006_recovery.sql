-- +goose Up

-- What an incarnation of a node recovers with, and whether its identity is
-- locked because two hold it. A reissued token's claim starts the next
-- incarnation and clears all of it.
ALTER TABLE nodes
    ADD COLUMN recovery_key bytea CONSTRAINT nodes_recovery_key_check CHECK (octet_length(recovery_key) = 32),
    -- The sequence of the last identity that was issued, used or not.
    ADD COLUMN identity_sequence    bigint NOT NULL DEFAULT 0,
    ADD COLUMN identity_locked_at   timestamptz,
    ADD COLUMN identity_lock_reason text   NOT NULL DEFAULT '',
    ADD CONSTRAINT nodes_identity_lock_check CHECK ((identity_locked_at IS NULL) = (identity_lock_reason = ''));

-- Tokens of four purposes. A recovery token lives and dies with a certificate,
-- or until the certificate that it paid for is used; the others are one per node
-- and purpose. A reissued token carries the incarnation that its claim starts. A
-- fetch reference is spent at once, for a bundle of the other purpose named.
ALTER TABLE enrollment_tokens
    ADD COLUMN bundle_purpose text,
    DROP CONSTRAINT enrollment_tokens_purpose_check,
    ADD CONSTRAINT enrollment_tokens_purpose_check CHECK (purpose IN ('enroll', 'reissue', 'recover', 'fetch')),
    ADD CONSTRAINT enrollment_tokens_bundle_check CHECK (
        (bundle_purpose IS NOT NULL) = (purpose = 'fetch') AND bundle_purpose IN ('enroll', 'reissue')),
    DROP CONSTRAINT enrollment_tokens_claimed_check,
    ADD CONSTRAINT enrollment_tokens_claimed_check CHECK (
        purpose = 'fetch' OR state IN ('issued', 'voided') OR (claimed_spki IS NOT NULL AND claimed_at IS NOT NULL));

DROP INDEX enrollment_tokens_live_key;
CREATE UNIQUE INDEX enrollment_tokens_live_key ON enrollment_tokens (node_id, purpose)
    WHERE state IN ('issued', 'claimed') AND purpose <> 'recover';
CREATE INDEX enrollment_tokens_recover_idx ON enrollment_tokens (node_id)
    WHERE state IN ('issued', 'claimed') AND purpose = 'recover';

-- A certificate leaves its slot as retired when it was used, and as replaced
-- when it never was: the first seen again is a clone's, the second is what a
-- lost answer leaves.
ALTER TABLE node_certificates DROP CONSTRAINT node_certificates_retired_check;
ALTER TABLE node_certificates DROP CONSTRAINT node_certificates_slot_check;
DROP INDEX node_certificates_slot_key;
ALTER TABLE node_certificates
    ADD COLUMN via text NOT NULL DEFAULT 'enroll' CONSTRAINT node_certificates_via_check
        CHECK (via IN ('enroll', 'renew', 'recover')),
    -- Rises with each identity of an incarnation; 0 for those older than this
    -- column, so that an agent that knows no sequence is never behind.
    ADD COLUMN sequence          bigint NOT NULL DEFAULT 0,
    ADD COLUMN recovery_token_id uuid CONSTRAINT node_certificates_recovery_key UNIQUE
        CONSTRAINT node_certificates_recovery_fkey REFERENCES enrollment_tokens (token_id),
    -- The key that asked for the next certificate under this one.
    ADD COLUMN renewal_spki      text,
    ADD COLUMN renewal_at        timestamptz;
UPDATE node_certificates SET slot = 'replaced' WHERE slot = 'retired' AND promoted_at IS NULL;
ALTER TABLE node_certificates
    ALTER COLUMN via DROP DEFAULT,
    ALTER COLUMN sequence DROP DEFAULT,
    ADD CONSTRAINT node_certificates_slot_check CHECK (slot IN ('pending', 'current', 'retired', 'replaced')),
    ADD CONSTRAINT node_certificates_retired_check CHECK ((retired_at IS NOT NULL) = (slot IN ('retired', 'replaced')));
CREATE UNIQUE INDEX node_certificates_slot_key ON node_certificates (node_id, slot) WHERE slot IN ('pending', 'current');

-- Whose a key is, for ever: two nodes with one key are one machine's copies.
CREATE TABLE identity_keys (
    spki       text        CONSTRAINT identity_keys_pkey PRIMARY KEY,
    node_id    uuid        NOT NULL CONSTRAINT identity_keys_node_fkey REFERENCES nodes (node_id),
    first_seen timestamptz NOT NULL DEFAULT now()
);
INSERT INTO identity_keys (spki, node_id, first_seen)
    SELECT spki, node_id, issued_at FROM node_certificates ORDER BY issued_at
    ON CONFLICT ON CONSTRAINT identity_keys_pkey DO NOTHING;

-- A reissue is an operation that does not hold its node: op_seq 0.
ALTER TABLE operations
    -- The claim checks the action against the plans in schema/lifecycle.
    DROP CONSTRAINT operations_action_check,
    ADD CONSTRAINT operations_op_seq_check CHECK ((op_seq = 0) = (action = 'reissue-enrollment')),
    DROP CONSTRAINT operations_node_op_seq_key;
DROP INDEX operations_node_open_key;
CREATE UNIQUE INDEX operations_node_op_seq_key ON operations (node_id, op_seq) WHERE op_seq > 0;
CREATE UNIQUE INDEX operations_node_open_key ON operations (node_id) WHERE ended_at IS NULL AND op_seq > 0;
CREATE UNIQUE INDEX operations_reissue_open_key ON operations (node_id) WHERE ended_at IS NULL AND op_seq = 0;

-- +goose Down
DROP INDEX operations_reissue_open_key;
DROP INDEX operations_node_open_key;
DROP INDEX operations_node_op_seq_key;
DELETE FROM operations WHERE op_seq = 0;
ALTER TABLE operations
    DROP CONSTRAINT operations_op_seq_check,
    ADD CONSTRAINT operations_action_check CHECK (action IN (
        'enroll', 'provision', 'drain', 'retire', 'reactivate', 'remove')),
    ADD CONSTRAINT operations_node_op_seq_key UNIQUE (node_id, op_seq);
CREATE UNIQUE INDEX operations_node_open_key ON operations (node_id) WHERE ended_at IS NULL;

DROP TABLE identity_keys;

DROP INDEX node_certificates_slot_key;
ALTER TABLE node_certificates
    DROP CONSTRAINT node_certificates_retired_check,
    DROP CONSTRAINT node_certificates_slot_check,
    DROP COLUMN renewal_at, DROP COLUMN renewal_spki, DROP COLUMN recovery_token_id, DROP COLUMN sequence, DROP COLUMN via;
UPDATE node_certificates SET slot = 'retired' WHERE slot = 'replaced';
UPDATE node_certificates SET token_id = NULL
    WHERE token_id IN (SELECT token_id FROM enrollment_tokens WHERE purpose <> 'enroll');
ALTER TABLE node_certificates
    ADD CONSTRAINT node_certificates_slot_check CHECK (slot IN ('pending', 'current', 'retired')),
    ADD CONSTRAINT node_certificates_retired_check CHECK ((retired_at IS NOT NULL) = (slot = 'retired'));
CREATE UNIQUE INDEX node_certificates_slot_key ON node_certificates (node_id, slot) WHERE slot <> 'retired';

DROP INDEX enrollment_tokens_recover_idx;
DROP INDEX enrollment_tokens_live_key;
DELETE FROM enrollment_tokens WHERE purpose <> 'enroll';
ALTER TABLE enrollment_tokens
    DROP CONSTRAINT enrollment_tokens_bundle_check,
    DROP CONSTRAINT enrollment_tokens_purpose_check,
    DROP CONSTRAINT enrollment_tokens_claimed_check,
    DROP COLUMN bundle_purpose,
    ADD CONSTRAINT enrollment_tokens_purpose_check CHECK (purpose IN ('enroll')),
    ADD CONSTRAINT enrollment_tokens_claimed_check CHECK (
        state IN ('issued', 'voided') OR (claimed_spki IS NOT NULL AND claimed_at IS NOT NULL));
CREATE UNIQUE INDEX enrollment_tokens_live_key ON enrollment_tokens (node_id, purpose)
    WHERE state IN ('issued', 'claimed');

ALTER TABLE nodes
    DROP CONSTRAINT nodes_identity_lock_check,
    DROP COLUMN identity_lock_reason, DROP COLUMN identity_locked_at, DROP COLUMN identity_sequence, DROP COLUMN recovery_key;
