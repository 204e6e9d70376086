-- +goose Up

-- The oldest programs that work with this schema: those whose newest migration has at
-- least this number. A migration that programs before it cannot work with sets it. One row.
CREATE TABLE schema_programs (
    only_row       boolean NOT NULL DEFAULT true CONSTRAINT schema_programs_pkey PRIMARY KEY
                           CONSTRAINT schema_programs_only_row_check CHECK (only_row),
    oldest_program bigint  NOT NULL
);

INSERT INTO schema_programs (oldest_program) VALUES (1);

-- +goose Down
DROP TABLE schema_programs;
