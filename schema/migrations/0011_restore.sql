-- +goose Up

ALTER TABLE nodes
    -- The highest task sequence that the node's polls named above those on record, as after
    -- a restore of the database. A new task gets a higher one.
    ADD COLUMN task_seq_floor bigint NOT NULL DEFAULT 0;

-- The periods in which the database was just restored to an earlier time, with what
-- their start and the time since then changed. At most one is on: it has no ended_at, and
-- its ends_at is in the future.
CREATE TABLE restore_modes (
    epoch         bigint      GENERATED ALWAYS AS IDENTITY CONSTRAINT restore_modes_pkey PRIMARY KEY,
    actor         text        NOT NULL,
    reason        text        NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    ends_at       timestamptz NOT NULL,
    ended_at      timestamptz,
    -- The newest audit event at the start: later ones are missing.
    last_audit_at timestamptz,
    tokens_voided bigint      NOT NULL DEFAULT 0,

    CONSTRAINT restore_modes_ends_check CHECK (ends_at > started_at AND ends_at <= started_at + interval '24 hours')
);

CREATE UNIQUE INDEX restore_modes_open_key ON restore_modes ((true)) WHERE ended_at IS NULL;

-- +goose Down
DROP TABLE restore_modes;
ALTER TABLE nodes DROP COLUMN task_seq_floor;
