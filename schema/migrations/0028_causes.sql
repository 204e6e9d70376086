-- +goose Up

-- The probable cause of the newest park of an operation, as the workers found it: a cause.Report.
CREATE TABLE operation_causes (
    operation_id uuid        CONSTRAINT operation_causes_pkey PRIMARY KEY
                             CONSTRAINT operation_causes_operation_fkey REFERENCES operations (operation_id),
    stuck_since  timestamptz NOT NULL, -- the park
    report       jsonb       NOT NULL,
    found_at     timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE operation_causes;
