-- +goose Up

-- The machines at providers that no instance owns, as the last round of SweepMachines found them.
-- instance_id is the owner tag at the provider, which may be no ID of ours.
CREATE TABLE machine_leftovers (
    provider     text        NOT NULL,
    instance_id  text        NOT NULL,
    external_id  text        NOT NULL,
    host         text        NOT NULL,
    -- Empty if the provider does not list the machine of an open entry of the ledger.
    phase        text        NOT NULL,
    detail       text        NOT NULL,
    class        text        NOT NULL CONSTRAINT machine_leftovers_class_check CHECK (class IN ('leftover', 'orphan', 'duplicate')),
    first_seen   timestamptz NOT NULL DEFAULT now(),
    last_seen    timestamptz NOT NULL DEFAULT now(),
    -- When the provider was last asked to delete the machine.
    attempted_at timestamptz,
    -- When the provider had no such machine after that. The row stays for 30 days.
    deleted_at   timestamptz,
    CONSTRAINT machine_leftovers_pkey PRIMARY KEY (provider, instance_id)
);

-- +goose Down
DROP TABLE machine_leftovers;
