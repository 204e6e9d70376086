-- The roles of the processes and what each may do. `gpuaas admin setup` runs this file
-- after the migrations, in one transaction, as the owner of the tables. The roles get
-- exactly these privileges. A table that a migration adds needs a line for each role that
-- uses it; TestGrants compares the roles with a table of what it expects.
--
--   gpuaas_worker     gpuaas-worker
--   gpuaas_api_admin  gpuaas-api: the admin API
--   gpuaas_api_node   gpuaas-api: the node API, the relay and the sweep of polls
--
-- No role may write to the audit trail other than through audit_append, or delete from it
-- other than through audit_cut, and none owns a table. A process logs in as one of the roles,
-- or as a member of it.
DO $$
DECLARE
    process text;
BEGIN
    FOREACH process IN ARRAY ARRAY['gpuaas_worker', 'gpuaas_api_admin', 'gpuaas_api_node'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = process) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', process);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- the setup of another database of the server was faster
            END;
        END IF;
    END LOOP;
END
$$;

-- A role without objects of its own cannot replace those that a statement names. Only the
-- owner of the database can revoke this; for another role it is a warning.
DO $$
BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END
$$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;

-- Each process reads everything but the hashes of tokens, which the worker has no use for.
GRANT SELECT ON audit_events, audit_heads, goose_db_version, identity_keys, identity_refusals, instances, machine_leftovers, node_api,
    node_ca_bundles, node_certificates, node_removals, node_sessions, node_tasks, nodes, operations, outbox, providers, resources, restore_modes, schema_programs, skus, verifier_sets
    TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
GRANT SELECT ON audit_checkpoints, audit_checkpoint_heads, audit_missing TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
GRANT SELECT ON enrollment_tokens TO gpuaas_api_admin, gpuaas_api_node;
GRANT SELECT (token_id, node_id, incarnation, purpose, bundle_purpose, state, claimed_spki, issued_at, expires_at, claimed_at, ended_at)
    ON enrollment_tokens TO gpuaas_worker;
GRANT EXECUTE ON FUNCTION audit_append(text, text, text, text, text, text, text, text, text, jsonb)
    TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;

-- Each process records signals. The node API and the admin API store the reports of nodes and of
-- the cluster agent.
GRANT SELECT, INSERT ON signals TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
GRANT SELECT ON conditions, health_reports TO gpuaas_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON conditions TO gpuaas_api_admin, gpuaas_api_node;
GRANT SELECT, INSERT, UPDATE ON health_reports, signal_counts TO gpuaas_api_admin, gpuaas_api_node;
GRANT UPDATE (detail) ON signals TO gpuaas_api_admin, gpuaas_api_node; -- the number of dropped signals

-- The admin API stores templates, the node API what nodes report, and the worker how they differ.
GRANT SELECT ON templates, template_assignments, node_artifacts, node_drifts TO gpuaas_worker, gpuaas_api_admin;
GRANT INSERT, UPDATE ON templates TO gpuaas_api_admin;
GRANT INSERT, DELETE ON template_assignments TO gpuaas_api_admin;
GRANT SELECT, INSERT, UPDATE ON node_artifacts TO gpuaas_api_node;
GRANT INSERT, UPDATE, DELETE ON node_drifts TO gpuaas_worker;

-- The worker runs operations.
GRANT UPDATE ON nodes, enrollment_tokens, node_certificates TO gpuaas_worker;
GRANT INSERT ON enrollment_tokens TO gpuaas_worker; -- a machine that it creates enrolls
GRANT INSERT, UPDATE ON providers TO gpuaas_worker;
GRANT SELECT, INSERT, UPDATE ON operation_causes TO gpuaas_worker;
GRANT SELECT ON operation_causes TO gpuaas_api_admin;
GRANT INSERT, UPDATE, DELETE ON machine_leftovers TO gpuaas_worker;
GRANT INSERT, UPDATE ON instances, operations, resources, node_tasks, node_removals TO gpuaas_worker;
GRANT INSERT, UPDATE, DELETE ON outbox, identity_refusals TO gpuaas_worker;
GRANT INSERT ON audit_checkpoints TO gpuaas_worker;
GRANT INSERT, UPDATE ON audit_checkpoint_heads TO gpuaas_worker;
GRANT SELECT ON rotations, rotation_waivers, node_api_replicas TO gpuaas_worker, gpuaas_api_admin;
GRANT UPDATE ON rotations TO gpuaas_worker;
GRANT INSERT ON verifier_sets TO gpuaas_worker; -- a set is signed, and a rotation publishes one

-- It decides about nodes with a fault and starts repairs. The admin API sets the policy and closes the
-- breaker.
GRANT SELECT ON recovery_policies, recovery_states, recovery_decisions, recovery_attempts, budget_reservations, recovery_breaker
    TO gpuaas_worker, gpuaas_api_admin;
GRANT INSERT, UPDATE, DELETE ON recovery_states, recovery_decisions, recovery_attempts, budget_reservations TO gpuaas_worker;
GRANT UPDATE ON recovery_breaker TO gpuaas_worker, gpuaas_api_admin;
GRANT SELECT ON machine_resets, rma_bundles TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
GRANT INSERT, DELETE ON machine_resets TO gpuaas_worker;
GRANT INSERT, DELETE ON rma_bundles TO gpuaas_worker;
GRANT INSERT ON recovery_policies TO gpuaas_api_admin;

GRANT SELECT ON audit_archives, audit_archived_heads TO gpuaas_worker;
GRANT SELECT ON retention_runs TO gpuaas_worker, gpuaas_api_admin;
GRANT UPDATE ON retention_runs TO gpuaas_worker;
GRANT EXECUTE ON FUNCTION audit_archive(bigint, bigint, text, text, bigint), audit_cut(text[], bigint[]),
    delete_old_tasks(double precision, bigint), delete_old_identities(double precision, bigint) TO gpuaas_worker;

-- Retention, and what a machine or node that is gone reported.
GRANT DELETE ON signals, conditions, health_reports, node_artifacts TO gpuaas_worker;
GRANT SELECT, DELETE ON signal_counts TO gpuaas_worker;

-- The admin API registers nodes, issues tokens, decides about tasks and records abandoned
-- operations as failed.
GRANT INSERT, UPDATE ON nodes, skus, enrollment_tokens TO gpuaas_api_admin;
GRANT UPDATE ON instances, operations, node_certificates TO gpuaas_api_admin;
-- Not the envelope of a task and its digest: only the worker decides what is signed.
GRANT UPDATE (status, result, finished_at, lost_at, cancel_reason, cancel_requested_at) ON node_tasks TO gpuaas_api_admin;
GRANT INSERT, UPDATE, DELETE ON outbox TO gpuaas_api_admin;
-- It starts rotations and stores decisions about them. It does not choose the new key.
GRANT INSERT (rotation_id, kind, phase, old_key, grace_seconds, approved, actor, via, reason),
    UPDATE (step, phase, phase_since, set_version, ca_bundle, ca_issuer, ca_issuer_key, approved, paused, ended_at, outcome, failure, checked_at)
    ON rotations TO gpuaas_api_admin;
GRANT INSERT ON rotation_waivers TO gpuaas_api_admin;
GRANT DELETE ON node_sessions TO gpuaas_api_admin;
GRANT SELECT, INSERT, UPDATE (last_seen_at), DELETE ON console_sessions TO gpuaas_api_admin;
GRANT SELECT (id, last_seen_at, expires_at), DELETE ON console_sessions TO gpuaas_worker; -- retention; it reads no hash of a token
GRANT UPDATE (accepted_at) ON audit_missing TO gpuaas_api_admin;

-- The node API issues identities, stores heartbeats and dispatches tasks.
GRANT UPDATE (state, state_since, cordoned, incarnation, polled_incarnation, recovery_key, identity_sequence, identity_locked_at,
    identity_lock_reason, identity_locked_by, identity_lock_note, identity_alarm, identity_alarm_at, poll_session, poll_contested,
    previous_recovery_key, set_version, set_hash, last_heartbeat_at, agent_version, boot_id, driver, driver_fault, agent_fault, uptime_seconds, workloads, workloads_at,
    task_seq_floor, silent_at) ON nodes TO gpuaas_api_node;
GRANT INSERT, UPDATE ON enrollment_tokens, node_api, node_ca_bundles, node_certificates, identity_keys, identity_refusals TO gpuaas_api_node;
GRANT UPDATE (status, lease_epoch, lease_until, holder, poll_number, progress, beat_at, cancel_seen, paused, result, output_tail,
    result_serial, result_key, result_body, result_signature, dispatched_at, lost_at, finished_at) ON node_tasks TO gpuaas_api_node;
GRANT INSERT, UPDATE, DELETE ON outbox, node_sessions TO gpuaas_api_node;
GRANT SELECT, INSERT, UPDATE, DELETE ON node_api_replicas TO gpuaas_api_node;
GRANT INSERT ON audit_missing TO gpuaas_api_node;
