-- +goose Up

-- The node CA is rotated, too: what its phase requires (schema/rotation.CA).
ALTER TABLE rotations DROP CONSTRAINT rotations_kind_check,
    ADD CONSTRAINT rotations_kind_check CHECK (kind IN ('task-key', 'set-root', 'revoke-key', 'node-ca')) NOT VALID,
    ADD COLUMN ca_bundle text NOT NULL DEFAULT '',
    ADD COLUMN ca_issuer text NOT NULL DEFAULT '',
    ADD COLUMN ca_issuer_key text NOT NULL DEFAULT '';

-- The digest of the node CA bundle that an incarnation's last poll named.
CREATE TABLE node_ca_bundles (
    node_id     uuid   CONSTRAINT node_ca_bundles_pkey PRIMARY KEY
                       CONSTRAINT node_ca_bundles_node_fkey REFERENCES nodes (node_id),
    incarnation bigint NOT NULL,
    digest      text   NOT NULL
);

-- +goose Down
DROP TABLE node_ca_bundles;
DELETE FROM rotation_waivers w USING rotations r WHERE r.rotation_id = w.rotation_id AND r.kind = 'node-ca';
DELETE FROM rotations WHERE kind = 'node-ca';
ALTER TABLE rotations DROP COLUMN ca_bundle, DROP COLUMN ca_issuer, DROP COLUMN ca_issuer_key, DROP CONSTRAINT rotations_kind_check,
    ADD CONSTRAINT rotations_kind_check CHECK (kind IN ('task-key', 'set-root', 'revoke-key'));
