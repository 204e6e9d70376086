package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// processRoles are the roles of the processes, in the order of the columns below.
func processRoles() []string {
	return []string{store.RoleWorker, store.RoleAPIAdmin, store.RoleAPINode}
}

// verbs are all privileges on a table, with the letters of grants.
var verbs = []string{"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"}

// grants are the privileges of each role on each table, by their first letters. A small
// letter means that the role has the privilege on some columns only.
var grants = map[string][3]string{
	//                    worker  admin  node
	"audit_events":           {"S", "S", "S"},
	"audit_heads":            {"S", "S", "S"},
	"console_sessions":       {"sD", "SIuD", ""},
	"enrollment_tokens":      {"sIU", "SIU", "SIU"},
	"goose_db_version":       {"S", "S", "S"},
	"identity_keys":          {"S", "S", "SIU"},
	"identity_refusals":      {"SIUD", "S", "SIU"},
	"instances":              {"SIU", "SU", "S"},
	"machine_leftovers":      {"SIUD", "S", "S"},
	"node_api":               {"S", "S", "SIU"},
	"node_certificates":      {"SU", "SU", "SIU"},
	"node_removals":          {"SIU", "S", "S"},
	"node_sessions":          {"S", "SD", "SIUD"},
	"node_tasks":             {"SIU", "Su", "Su"},
	"nodes":                  {"SU", "SIU", "Su"},
	"operation_causes":       {"SIU", "S", ""},
	"operations":             {"SIU", "SU", "S"},
	"outbox":                 {"SIUD", "SIUD", "SIUD"},
	"providers":              {"SIU", "S", "S"},
	"resources":              {"SIU", "S", "S"},
	"restore_modes":          {"S", "S", "S"},
	"schema_programs":        {"S", "S", "S"},
	"skus":                   {"S", "SIU", "S"},
	"verifier_sets":          {"SI", "S", "S"},
	"audit_checkpoints":      {"SI", "S", "S"},
	"audit_checkpoint_heads": {"SIU", "S", "S"},
	"audit_missing":          {"S", "Su", "SI"},
	"audit_archives":         {"S", "", ""},
	"audit_archived_heads":   {"S", "", ""},
	"retention_runs":         {"SU", "S", ""},
	"node_ca_bundles":        {"S", "S", "SIU"},
	"node_api_replicas":      {"S", "S", "SIUD"},
	"rotations":              {"SU", "Siu", ""},
	"rotation_waivers":       {"S", "SI", ""},
	"machine_resets":         {"SID", "S", "S"},
	"rma_bundles":            {"SID", "S", "S"},
	"recovery_policies":      {"S", "SI", ""},
	"recovery_states":        {"SIUD", "S", ""},
	"recovery_decisions":     {"SIUD", "S", ""},
	"recovery_attempts":      {"SIUD", "S", ""},
	"budget_reservations":    {"SIUD", "S", ""},
	"recovery_breaker":       {"SU", "SU", ""},
	"signals":                {"SID", "SIu", "SIu"},
	"signal_counts":          {"SD", "SIU", "SIU"},
	"conditions":             {"SD", "SIUD", "SIUD"},
	"health_reports":         {"SD", "SIU", "SIU"},
	"templates":              {"S", "SIU", ""},
	"template_assignments":   {"S", "SID", ""},
	"node_artifacts":         {"SD", "S", "SIU"},
	"node_drifts":            {"SIUD", "S", ""},
}

// prepared is setup with the privileges on the database itself, which a database that is
// copied from a template does not have.
func prepared(t *testing.T) *env {
	t.Helper()
	e := setup(t)
	require.NoError(t, store.Migrate(t.Context(), e.url))
	return e
}

// TestGrants compares the privileges of all roles on all tables with the table above. A
// new table must be added to schema/migrations/grants and here.
func TestGrants(t *testing.T) {
	e := prepared(t)
	rows, err := e.raw.Query(t.Context(), "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	got := map[string][3]string{}
	for _, table := range tables {
		var has [3]string
		for i, role := range processRoles() {
			has[i] = e.privileges(role, table)
		}
		got[table] = has
	}
	require.Equal(t, grants, got)
	for _, role := range processRoles() {
		require.False(t, e.holds("SELECT pg_has_role($1, (SELECT tableowner FROM pg_tables WHERE tablename = 'audit_events'), 'MEMBER')", role), role)
		require.False(t, e.holds("SELECT has_schema_privilege($1, 'public', 'CREATE')", role), role)
		require.False(t, e.holds("SELECT has_database_privilege($1, current_database(), 'CREATE, TEMPORARY')", role), role)
		require.False(t, e.holds("SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls FROM pg_roles WHERE rolname = $1", role), role)
	}
}

// privileges returns the letters of a role's privileges on a table.
func (e *env) privileges(role, table string) string {
	e.t.Helper()
	var letters strings.Builder
	for _, verb := range verbs {
		if e.holds("SELECT has_table_privilege($1, $2, $3)", role, table, verb) {
			letters.WriteString(verb[:1])
		} else if slices.Contains([]string{"SELECT", "INSERT", "UPDATE"}, verb) && e.holds("SELECT has_any_column_privilege($1, $2, $3)", role, table, verb) {
			letters.WriteString(strings.ToLower(verb[:1]))
		}
	}
	return letters.String()
}

func (e *env) holds(sql string, args ...any) (holds bool) {
	e.t.Helper()
	require.NoError(e.t, e.raw.QueryRow(e.t.Context(), sql, args...).Scan(&holds))
	return holds
}

// TestForbiddenWrites tries, as each role, what would rewrite the audit trail or take a
// privilege.
func TestForbiddenWrites(t *testing.T) {
	e := prepared(t)
	n := e.register()
	all := []string{
		"INSERT INTO audit_events (stream, seq, at, actor, action, target, result, prev_hash, hash) VALUES ('system', 99, now(), 'a', 'b', 'c', 'succeeded', '', '')",
		"UPDATE audit_events SET actor = 'mallory'",
		"DELETE FROM audit_events",
		"TRUNCATE audit_events",
		"INSERT INTO audit_heads (stream) VALUES ('mallory')",
		"UPDATE audit_heads SET seq = 0",
		"DELETE FROM audit_heads",
		"SET gpuaas.audit_cut = 'on'; DELETE FROM audit_events",
		"INSERT INTO audit_archives (last_checkpoint, after_checkpoint, file, sha256, events) VALUES (1, 0, '', '', 0)",
		"INSERT INTO audit_archived_heads (stream, seq, hash, last_checkpoint) VALUES ('system', 1, '', 1)",
		"UPDATE audit_checkpoints SET hash = ''",
		"DELETE FROM audit_checkpoints",
		"DELETE FROM audit_missing",
		"ALTER TABLE audit_events DISABLE TRIGGER USER",
		"ALTER TABLE audit_events OWNER TO CURRENT_USER",
		"DROP TRIGGER audit_events_append_only ON audit_events",
		"CREATE OR REPLACE FUNCTION audit_events_append_only() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"CREATE OR REPLACE FUNCTION audit_field(field text) RETURNS text LANGUAGE sql AS 'SELECT field'",
		"CREATE FUNCTION convert_to(text, text) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'",
		"ALTER FUNCTION audit_append SECURITY INVOKER",
		"SET session_replication_role = 'replica'",
		"CREATE TABLE mine (n int)",
		"CREATE TEMP TABLE node_removals ()",
		"CREATE ROLE mallory",
		"DELETE FROM nodes",
		"DELETE FROM operations",
		"DELETE FROM node_tasks",
		"UPDATE verifier_sets SET document = ''",
		"COPY nodes TO PROGRAM 'cat'",
	}
	each := map[string][]string{
		store.RoleWorker: {"SELECT secret_hash FROM enrollment_tokens", "INSERT INTO nodes (node_id) VALUES (gen_random_uuid())",
			"INSERT INTO node_certificates (node_id) VALUES (gen_random_uuid())", "UPDATE identity_keys SET node_id = gen_random_uuid()"},
		store.RoleAPIAdmin: {"INSERT INTO node_certificates (node_id) VALUES (gen_random_uuid())", "UPDATE identity_keys SET node_id = gen_random_uuid()",
			"INSERT INTO node_removals (node_id) VALUES (gen_random_uuid())", "INSERT INTO operations (operation_id) VALUES (gen_random_uuid())",
			"INSERT INTO node_tasks (task_id) VALUES (gen_random_uuid())", "UPDATE nodes SET state = 'removed'",
			"UPDATE node_tasks SET envelope = ''", "UPDATE node_tasks SET body_sha256 = ''", "UPDATE node_tasks SET params = '{}'",
			"UPDATE rotations SET new_key = 'task-test.v1'", "UPDATE rotations SET old_key = ''",
			"INSERT INTO rotations (rotation_id, new_key) VALUES (gen_random_uuid(), 'task-test.v1')",
			"SELECT audit_cut('{system}', '{1}')", "SELECT delete_old_tasks(0, 1)", "UPDATE retention_runs SET succeeded_at = now()"},
		store.RoleAPINode: {"UPDATE nodes SET state = 'removed'", "UPDATE nodes SET host = '$(id)'", "UPDATE nodes SET op_seq = 99", "UPDATE nodes SET labels = '{}'",
			"UPDATE operations SET status = 'completed'", "INSERT INTO operations (operation_id) VALUES (gen_random_uuid())",
			"INSERT INTO node_removals (node_id) VALUES (gen_random_uuid())", "INSERT INTO node_tasks (task_id) VALUES (gen_random_uuid())",
			"SELECT audit_cut('{system}', '{1}')", "SELECT audit_archive(0, 1, 'f', repeat('0', 64), 1)",
			"SELECT delete_old_tasks(0, 1)", "SELECT delete_old_identities(0, 1)",
			"UPDATE node_tasks SET envelope = ''", "INSERT INTO nodes (node_id) VALUES (gen_random_uuid())", "UPDATE skus SET active = false"},
	}
	for _, role := range processRoles() {
		for _, sql := range append(each[role], all...) {
			err := postgres.Run(t.Context(), pgtest.As(e.url, role), sql)
			require.True(t, postgres.Denied(err), "%s as %s: %v", sql, role, err)
		}
		require.NoError(t, postgres.Run(t.Context(), pgtest.As(e.url, role),
			"SELECT audit_append('system', 'a', '', 'b', 'c', 'succeeded', '', '', '', '{}')"), role)
	}
	require.Len(t, e.chain("system"), len(processRoles()))
	require.Equal(t, lifecycle.NodeRegistered, e.node(n.ID).State)
}

// The role that serves nodes cannot restore a removed node either, and a table of its own
// changes nothing.
func TestOnlyTheWorkerRemoves(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	e.exec("GRANT TEMPORARY ON DATABASE " + e.text("SELECT current_database()") + " TO gpuaas_api_node, gpuaas_api_admin")
	own := "CREATE TEMP TABLE node_removals (); SET LOCAL search_path = pg_temp, public; "
	for _, role := range []string{store.RoleAPINode, store.RoleAPIAdmin} {
		for _, sql := range []string{"UPDATE nodes SET state = 'removed'", own + "UPDATE nodes SET state = 'removed'"} {
			err := postgres.Run(t.Context(), pgtest.As(e.url, role), sql)
			require.True(t, postgres.Denied(err), "%s as %s: %v", sql, role, err)
		}
	}
	require.Equal(t, lifecycle.NodeActive, e.node(n.ID).State)
	require.NoError(t, postgres.Run(t.Context(), pgtest.As(e.url, store.RoleWorker), "UPDATE nodes SET state = 'removed'"))
	for _, role := range []string{store.RoleAPINode, store.RoleAPIAdmin} {
		for _, sql := range []string{"UPDATE nodes SET state = 'active'", own + "UPDATE nodes SET state = 'active'"} {
			err := postgres.Run(t.Context(), pgtest.As(e.url, role), sql)
			require.True(t, postgres.Denied(err), "%s as %s: %v", sql, role, err)
		}
	}
	require.Equal(t, lifecycle.NodeRemoved, e.node(n.ID).State)
}

// A caller's own objects do not replace those that audit_append uses.
func TestAuditAppendIgnoresTheCallersObjects(t *testing.T) {
	e := setup(t)
	e.exec("GRANT TEMPORARY ON DATABASE " + e.text("SELECT current_database()") + " TO gpuaas_api_node")
	require.NoError(t, postgres.Run(t.Context(), pgtest.As(e.url, store.RoleAPINode), `
		CREATE TEMP TABLE audit_heads (stream text, seq bigint, at timestamptz, prev_hash text, hash text);
		CREATE TEMP TABLE audit_events (stream text, seq bigint);
		CREATE FUNCTION pg_temp.audit_field(field text) RETURNS text LANGUAGE sql AS 'SELECT ''''::text';
		SET LOCAL search_path = pg_temp, public;
		SELECT public.audit_append('system', 'a', '', 'b', 'c', 'succeeded', '', '', '', '{}')`))
	require.Len(t, e.chain("system"), 1)
}

// A caller's search path changes nothing in a trigger: each has its own.
func TestTriggersHaveTheirSearchPath(t *testing.T) {
	e := setup(t)
	require.Empty(t, e.text(`SELECT coalesce(string_agg(proname, ' '), '') FROM pg_proc
		WHERE pronamespace = 'public'::regnamespace AND prorettype = 'trigger'::regtype
			AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`))
}

// The owner need not be a superuser: it must be able to create roles, or find them.
func TestMigrateAsOwner(t *testing.T) {
	e := setup(t)
	database := e.text("SELECT current_database()")
	name := strings.ReplaceAll(database, "test_", "owner_")
	e.exec("CREATE ROLE " + name + " LOGIN CREATEROLE")
	e.exec("CREATE DATABASE " + name + " OWNER " + name)
	url := strings.NewReplacer("/"+database, "/"+name, "//gpuaas@", "//"+name+"@").Replace(e.url)
	for range 2 {
		require.NoError(t, store.Migrate(t.Context(), url))
	}
	worker := pgtest.As(strings.ReplaceAll(e.url, "/"+database, "/"+name), store.RoleWorker)
	require.True(t, postgres.Denied(postgres.Run(t.Context(), worker, "DELETE FROM audit_events")))
	require.NoError(t, postgres.Run(t.Context(), worker, "SELECT audit_append('system', 'a', '', 'b', 'c', 'succeeded', '', '', '', '{}')"))
}
