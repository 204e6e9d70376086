-- +goose Up

-- The probable cause of the newest park of an operation, as the workers found it: a cause.Report.
CREATE TABLE operation_causes (
    operation_id uuid        CONSTRAINT operation_causes_pkey PRIMARY KEY
                             CONSTRAINT operation_causes_operation_fkey REFERENCES operations (operation_id),
    stuck_since  timestamptz NOT NULL, -- the park
    report       jsonb       NOT NULL,
    found_at     timestamptz NOT NULL DEFAULT now()
);

-- For the durations of phases in a plan: the newest operations of an action.
CREATE INDEX operations_completed_idx ON operations (action, ended_at) WHERE status = 'completed';

-- +goose Down
DROP INDEX operations_completed_idx;
DROP TABLE operation_causes;
