-- +goose Up

-- Who signed a task's result and what: enough to check it when the certificate
-- is gone. NULL on a task that ended without a report, and on those that ended
-- before nodes signed.
ALTER TABLE node_tasks
    ADD COLUMN result_serial    text,
    ADD COLUMN result_key       bytea, -- public, PKIX in DER
    ADD COLUMN result_body      bytea, -- bytes, not JSON: the signature is over them
    ADD COLUMN result_signature bytea,
    ADD CONSTRAINT node_tasks_result_proof_check
        CHECK (num_nulls(result_serial, result_key, result_body, result_signature) IN (0, 4));

-- +goose Down
ALTER TABLE node_tasks
    DROP CONSTRAINT node_tasks_result_proof_check,
    DROP COLUMN result_signature, DROP COLUMN result_body, DROP COLUMN result_key, DROP COLUMN result_serial;
