-- +goose Up

-- Rotations of the keys that nodes trust. Each change of a row increments its step, and a
-- write that names another step changes nothing.
CREATE TABLE rotations (
    rotation_id   uuid        CONSTRAINT rotations_pkey PRIMARY KEY,
    kind          text        NOT NULL CONSTRAINT rotations_kind_check CHECK (kind IN ('task-key', 'set-root', 'revoke-key')),
    phase         text        NOT NULL,
    phase_since   timestamptz NOT NULL DEFAULT now(),
    step          bigint      NOT NULL DEFAULT 1,
    old_key       text        NOT NULL DEFAULT '',
    new_key       text        NOT NULL DEFAULT '',
    set_version   bigint      NOT NULL DEFAULT 0, -- that nodes must report in the phase; 0 until it is published
    grace_seconds bigint      NOT NULL,
    approved      boolean     NOT NULL DEFAULT false,
    paused        boolean     NOT NULL DEFAULT false,
    actor         text        NOT NULL,
    via           text        NOT NULL DEFAULT '',
    reason        text        NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    outcome       text        NOT NULL DEFAULT '',
    checked_at    timestamptz NOT NULL DEFAULT now(), -- when the workflow last looked at it
    failure       text        NOT NULL DEFAULT ''     -- what prevented it from continuing then
);

-- One rotation at a time, whatever its kind.
CREATE UNIQUE INDEX rotations_open_key ON rotations ((true)) WHERE ended_at IS NULL;
CREATE INDEX rotations_started_idx ON rotations (started_at);

-- Nodes that a rotation does not wait for.
CREATE TABLE rotation_waivers (
    rotation_id uuid NOT NULL CONSTRAINT rotation_waivers_rotation_fkey REFERENCES rotations (rotation_id),
    node_id     uuid NOT NULL,
    CONSTRAINT rotation_waivers_pkey PRIMARY KEY (rotation_id, node_id)
);

-- The hash of the verifier set that the node's last poll named.
ALTER TABLE nodes ADD COLUMN set_hash text NOT NULL DEFAULT '';

-- The ID of the key that signed the envelope; empty for a task from before this column.
ALTER TABLE node_tasks ADD COLUMN key_id text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE node_tasks DROP COLUMN key_id;
ALTER TABLE nodes DROP COLUMN set_hash;
DROP TABLE rotation_waivers;
DROP TABLE rotations;
