-- +goose Up

-- audit_append runs as the owner of the tables, because no role of a process may write
-- to the audit trail itself. Its search path is fixed, so that a caller's objects cannot
-- replace those that it names.
ALTER FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp;
REVOKE ALL ON FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) FROM PUBLIC;

-- Only a role that may store signed removals may remove a node or restore a removed one:
-- the process that serves nodes may not.
-- +goose StatementBegin
CREATE FUNCTION nodes_removal_allowed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_table_privilege(current_user, 'node_removals', 'INSERT') THEN
        RAISE EXCEPTION 'the role % may not change node % from % to %', current_user, OLD.node_id, OLD.state, NEW.state
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER nodes_removal_allowed BEFORE UPDATE OF state ON nodes FOR EACH ROW
    WHEN ((OLD.state = 'removed') <> (NEW.state = 'removed')) EXECUTE FUNCTION nodes_removal_allowed();

-- +goose Down
DROP TRIGGER nodes_removal_allowed ON nodes;
DROP FUNCTION nodes_removal_allowed();
GRANT EXECUTE ON FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) TO PUBLIC;
ALTER FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb) SECURITY INVOKER RESET ALL;
