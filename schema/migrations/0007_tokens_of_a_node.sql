-- +goose Up

-- What ends, replaces or consumes tokens looks for a node's, at each first use
-- of a certificate too: without this index it reads all tokens there ever were.
-- It takes in what the index of open recovery tokens found.
CREATE INDEX enrollment_tokens_node_idx ON enrollment_tokens (node_id);
DROP INDEX enrollment_tokens_recover_idx;

-- +goose Down
CREATE INDEX enrollment_tokens_recover_idx ON enrollment_tokens (node_id)
    WHERE state IN ('issued', 'claimed') AND purpose = 'recover';
DROP INDEX enrollment_tokens_node_idx;
