-- +goose Up

-- audit_append runs as the owner of the tables, because no role of a process may write
-- to the audit trail itself. Its search path is fixed, so that a caller's objects cannot
-- replace those that it names.
ALTER FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp;
REVOKE ALL ON FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) FROM PUBLIC;

-- Only a role that may store signed removals may remove a node or restore a removed one:
-- the process that serves nodes may not.
-- +goose StatementBegin
CREATE FUNCTION nodes_removal_allowed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT has_table_privilege(current_user, 'public.node_removals', 'INSERT') THEN
        RAISE EXCEPTION 'the role % may not change node % from % to %', current_user, OLD.node_id, OLD.state, NEW.state
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER nodes_removal_allowed BEFORE UPDATE OF state ON nodes FOR EACH ROW
    WHEN ((OLD.state = 'removed') <> (NEW.state = 'removed')) EXECUTE FUNCTION nodes_removal_allowed();

-- Signed checkpoints of the audit trail: see schema/audit.CheckpointBody.
CREATE TABLE audit_checkpoints (
    number    bigint CONSTRAINT audit_checkpoints_pkey PRIMARY KEY CONSTRAINT audit_checkpoints_number_check CHECK (number >= 1),
    hash      text   NOT NULL CONSTRAINT audit_checkpoints_hash_key UNIQUE,
    -- Unique, so the chain cannot fork.
    prev_hash text   NOT NULL CONSTRAINT audit_checkpoints_prev_key UNIQUE,
    body      bytea  NOT NULL, -- bytes, not JSON: they are hashed
    signed    text   NOT NULL  -- the signed checkpoint
);

CREATE TRIGGER audit_checkpoints_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();

-- The head of each stream in its last checkpoint, which makes the next one small.
CREATE TABLE audit_checkpoint_heads (
    stream text   CONSTRAINT audit_checkpoint_heads_pkey PRIMARY KEY,
    seq    bigint NOT NULL
) WITH (fillfactor = 70);

-- Checkpoints that nodes keep and that audit_checkpoints does not have: the database was
-- restored, or a part of the audit trail was removed or replaced. Those that are not
-- verified are false.
CREATE TABLE audit_missing (
    number      bigint      NOT NULL,
    hash        text        NOT NULL,
    verified    boolean     NOT NULL, -- whether the checkpoint key signed it
    signed      text        NOT NULL, -- empty if it did not
    node_id     uuid        NOT NULL, -- the node that has it
    found_at    timestamptz NOT NULL DEFAULT now(),
    accepted_at timestamptz,          -- when an operator accepted the loss
    CONSTRAINT audit_missing_pkey PRIMARY KEY (number, hash, verified)
);

-- A node may send any number of false ones: one of them is stored.
CREATE UNIQUE INDEX audit_missing_unverified_key ON audit_missing (node_id) WHERE NOT verified AND accepted_at IS NULL;

-- +goose Down
DROP TABLE audit_missing;
DROP TABLE audit_checkpoint_heads;
DROP TABLE audit_checkpoints;
DROP TRIGGER nodes_removal_allowed ON nodes;
DROP FUNCTION nodes_removal_allowed();
GRANT EXECUTE ON FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) TO PUBLIC;
ALTER FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) SECURITY INVOKER RESET ALL;
