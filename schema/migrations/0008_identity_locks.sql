-- +goose Up

-- Commands and scripts contain host names, so no other characters than those of names and
-- addresses may be stored. The API checks the form exactly, and this check is never
-- stricter. A host that an earlier release accepted gets a name from the node's ID first:
-- otherwise every later update of its row would fail, also with NOT VALID. The workflow ID of
-- an open operation contains the host and locks the node, so no such node is renamed.
-- +goose StatementBegin
DO $$
DECLARE
    n      record;
    opened text;
BEGIN
    FOR n IN SELECT node_id, host FROM nodes WHERE host !~ '^[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}$' ORDER BY node_id FOR UPDATE LOOP
        IF EXISTS (SELECT FROM operations o WHERE o.node_id = n.node_id AND o.ended_at IS NULL) THEN
            opened := concat_ws(', ', opened, n.node_id::text);
        END IF;
        UPDATE nodes SET host = 'renamed-' || node_id WHERE node_id = n.node_id;
        PERFORM audit_append(n.node_id::text, 'gpuaas admin setup', '', 'nodes.set', n.node_id::text, 'succeeded', 'invalid_host', '', '',
            jsonb_build_object('host', 'renamed-' || n.node_id, 'previous_host', n.host));
    END LOOP;
    IF opened IS NOT NULL THEN
        RAISE EXCEPTION 'nodes with an invalid host name have open operations: %; end or cancel these with the previous version, then run gpuaas admin setup again', opened;
    END IF;
END
$$;
-- +goose StatementEnd
ALTER TABLE nodes
    ADD CONSTRAINT nodes_host_form_check CHECK (host ~ '^[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}$'),

    -- Who locked the identity and why; empty if the server locked it.
    ADD COLUMN identity_locked_by text NOT NULL DEFAULT '',
    ADD COLUMN identity_lock_note text NOT NULL DEFAULT '',
    -- Something that may mean that a second machine uses the node's identity or its token.
    ADD COLUMN identity_alarm     text NOT NULL DEFAULT '',
    ADD COLUMN identity_alarm_at  timestamptz,
    -- The agent process that made the node's last poll, as node_sessions has it; empty
    -- before the incarnation's first poll.
    ADD COLUMN poll_session text NOT NULL DEFAULT '',
    -- Whether a process polled after a newer one.
    ADD COLUMN poll_contested boolean NOT NULL DEFAULT false,
    -- The recovery key of the last incarnation that ended unlocked: it proves that a
    -- machine was the node before.
    ADD COLUMN previous_recovery_key bytea
        CONSTRAINT nodes_previous_recovery_key_check CHECK (octet_length(previous_recovery_key) = 32),
    ADD CONSTRAINT nodes_identity_alarm_check CHECK ((identity_alarm_at IS NULL) = (identity_alarm = '')),
    ADD CONSTRAINT nodes_identity_locked_by_check CHECK (identity_locked_at IS NOT NULL OR identity_locked_by || identity_lock_note = '');

CREATE INDEX nodes_identity_attention_idx ON nodes (node_id) WHERE identity_locked_at IS NOT NULL OR identity_alarm_at IS NOT NULL;

-- The latest agent processes that polled as the node. A process polls again after a newer
-- one only if a poll of it was delayed, or if both run: on two machines.
CREATE TABLE node_sessions (
    node_id     uuid        NOT NULL CONSTRAINT node_sessions_node_fkey REFERENCES nodes (node_id),
    session     text        NOT NULL,
    incarnation bigint      NOT NULL,
    number      bigint      NOT NULL, -- rises with each process of the node
    first_at    timestamptz NOT NULL DEFAULT now(),
    -- The first poll after a poll of a newer process: when, and the poll's nonce and number.
    returned_at  timestamptz,
    return_nonce text       NOT NULL DEFAULT '',
    return_seq   bigint     NOT NULL DEFAULT 0,
    CONSTRAINT node_sessions_pkey PRIMARY KEY (node_id, session)
);

-- +goose Down
DROP TABLE node_sessions;
DROP INDEX nodes_identity_attention_idx;
ALTER TABLE nodes
    DROP CONSTRAINT nodes_host_form_check,
    DROP COLUMN identity_locked_by,
    DROP COLUMN identity_lock_note,
    DROP COLUMN identity_alarm,
    DROP COLUMN identity_alarm_at,
    DROP COLUMN poll_session,
    DROP COLUMN poll_contested,
    DROP COLUMN previous_recovery_key;
