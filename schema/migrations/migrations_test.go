package migrations_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/migrations"
)

// ruled is the first migration that the rules of the package comment hold for.
const ruled = 14

// small are the tables of a few rows.
var small = []string{"node_api", "schema_programs", "skus"}

// TestRules reads the SQL of the migrations.
func TestRules(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.Files, "*.sql")
	require.NoError(t, err)
	numbers := map[int64]string{}
	for _, name := range names {
		require.Regexp(t, `^\d{4}_[a-z_]+\.sql$`, name)
		number, err := strconv.ParseInt(name[:4], 10, 64)
		require.NoError(t, err)
		require.Empty(t, numbers[number], "%s has the number of another migration", name)
		numbers[number] = name
		data, err := fs.ReadFile(migrations.Files, name)
		require.NoError(t, err)
		if number >= ruled {
			require.Empty(t, faults(number, string(data)), name)
		}
		require.LessOrEqual(t, number, migrations.Latest())
	}
	require.Contains(t, numbers, migrations.Latest())
}

// TestRulesReport shows each rule's finding.
func TestRulesReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sql, fault string }{
		{"CREATE TABLE t (n int CHECK (n > 0)); CREATE INDEX i ON t (n); ALTER TABLE t ADD CONSTRAINT c CHECK (n < 9);", ""},
		{"ALTER TABLE skus ADD CONSTRAINT c CHECK (max_gpus < 9); CREATE INDEX i ON skus (active); UPDATE skus SET active = true;", ""},
		{"ALTER TABLE nodes ADD CONSTRAINT c CHECK (port > 0);", "NOT VALID"},
		{"ALTER TABLE ONLY nodes ADD CHECK (port > 0);", "NOT VALID"},
		{"ALTER TABLE nodes\n  -- NOT VALID\n  ADD CONSTRAINT c CHECK (port > 0);", "NOT VALID"},
		{"ALTER TABLE nodes ADD COLUMN a int, ADD CONSTRAINT c CHECK (port > 0) NOT VALID;", ""},
		{"ALTER TABLE nodes ADD CONSTRAINT a CHECK (port > 0) NOT VALID, ADD CONSTRAINT b CHECK (port > 1);", "NOT VALID"},
		{"ALTER TABLE nodes ADD COLUMN a int CHECK (a > 0);", "NOT VALID"},
		{"ALTER TABLE nodes ADD COLUMN a text REFERENCES skus (name);", "NOT VALID"},
		{"ALTER TABLE public.nodes ADD CONSTRAINT c CHECK (port > 0) NOT VALID; ALTER TABLE nodes VALIDATE CONSTRAINT c;", "later file"},
		{"ALTER TABLE nodes VALIDATE CONSTRAINT c;", ""},
		{"ALTER TABLE nodes ADD CONSTRAINT c UNIQUE (host);", "USING INDEX"},
		{"ALTER TABLE nodes ADD CONSTRAINT c UNIQUE USING INDEX c;", ""},
		{"ALTER TABLE nodes ADD COLUMN a int UNIQUE;", "USING INDEX"},
		{"CREATE UNIQUE INDEX i ON nodes (sku);", "CONCURRENTLY"},
		{"CREATE INDEX CONCURRENTLY i ON nodes (sku);", "a file of its own"},
		{concurrently("i", "i", "RESET lock_timeout;"), ""},
		{concurrently("j", "i", "RESET lock_timeout;"), "a file of its own"},
		{concurrently("i", "i", ""), "a file of its own"},
		{concurrently("i", "i", "RESET lock_timeout; ALTER TABLE nodes ADD COLUMN a int;"), "a file of its own"},
		{"UPDATE nodes SET sku = 'a';", "batches"},
		{"DELETE FROM nodes;", "batches"},
		{"ALTER TABLE nodes ADD COLUMN a int; ALTER TABLE outbox ADD COLUMN a int;", "one table"},
		{"ALTER TABLE nodes ADD COLUMN a int NOT NULL;", "default"},
		{"ALTER TABLE nodes ADD COLUMN a int NOT NULL DEFAULT 0;", ""},
		{"ALTER TABLE nodes ADD COLUMN a uuid DEFAULT gen_random_uuid();", "default"},
		{"ALTER TABLE nodes DROP COLUMN sku;", "oldest_program"},
		{"ALTER TABLE nodes ALTER COLUMN sku SET NOT NULL;", "oldest_program"},
		{"ALTER TABLE nodes ALTER sku SET DATA TYPE varchar;", "oldest_program"},
		{"ALTER TABLE nodes RENAME sku TO kind;", "oldest_program"},
		{"DROP TABLE nodes;", "oldest_program"},
		{"DROP FUNCTION audit_append;", "oldest_program"},
		{"ALTER TABLE nodes DROP COLUMN sku; UPDATE schema_programs SET oldest_program = 98;", ""},
		{"ALTER TABLE nodes DROP COLUMN sku; UPDATE schema_programs SET oldest_program = 99;", "before"},
		{"-- +goose StatementBegin\nCREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN UPDATE nodes SET sku = ''; END $$;\n-- +goose StatementEnd", ""},
	} {
		sql := c.sql
		if !strings.Contains(sql, "+goose Up") {
			sql = "-- +goose Up\n" + sql
		}
		got := strings.Join(faults(99, sql+"\n-- +goose Down\nDROP TABLE nodes;"), "\n")
		if c.fault == "" {
			require.Empty(t, got, c.sql)
		} else {
			require.Contains(t, got, c.fault, c.sql)
		}
	}
}

func concurrently(dropped, made, end string) string {
	return fmt.Sprintf("-- +goose NO TRANSACTION\n-- +goose Up\nSET lock_timeout = '15min'; DROP INDEX CONCURRENTLY IF EXISTS %s; CREATE INDEX CONCURRENTLY %s ON nodes (sku); %s", dropped, made, end)
}

var (
	comments = regexp.MustCompile(`(?m)--.*$`)
	blocks   = regexp.MustCompile(`(?s)-- \+goose StatementBegin.*?-- \+goose StatementEnd`)
	spaces   = regexp.MustCompile(`\s+`)
	created  = regexp.MustCompile(`^create table (?:if not exists )?(?:public\.)?(\w+)`)
	altered  = regexp.MustCompile(`^alter table (?:if exists )?(?:only )?(?:public\.)?(\w+) (.*)`)
	indexed  = regexp.MustCompile(`^create (?:unique )?index (concurrently )?.*? on (?:only )?(?:public\.)?(\w+)`)
	changed  = regexp.MustCompile(`^(?:update|delete from) (?:only )?(?:public\.)?(\w+)`)
	action   = regexp.MustCompile(`, (add|drop|alter|validate|rename|set|reset|enable|disable|owner) `)
	checked  = regexp.MustCompile(`\b(check|references) ?\(|\breferences\b`)
	unique   = regexp.MustCompile(`\b(unique|primary key)\b`)
	breaking = regexp.MustCompile(`^drop (table|function|domain|view|sequence)|^alter table .*\b(drop (column )?\w+|rename|set not null|type)\b`)
	additive = regexp.MustCompile(`\bdrop (constraint|default|not null|expression|identity)\b`)
	oldest   = regexp.MustCompile(`^update schema_programs set oldest_program = (\d+)`)
	alone    = regexp.MustCompile(`^set lock_timeout = '\w+'; drop index concurrently if exists (\w+); create (?:unique )?index concurrently (\w+) on [^;]*; reset lock_timeout$`)
	constant = regexp.MustCompile(`\bdefault ('[^']*'|-?\d+|true|false|null)(::\w+)?( |$)`)
)

// statements returns the statements of the migration's Up part, in lower case with single
// spaces, without comments and functions.
func statements(sql string) []string {
	_, up, _ := strings.Cut(sql, "-- +goose Up")
	up, _, _ = strings.Cut(up, "-- +goose Down")
	up = comments.ReplaceAllString(blocks.ReplaceAllString(up, ""), "")
	var all []string
	for s := range strings.SplitSeq(up, ";") {
		if s = strings.TrimSpace(spaces.ReplaceAllString(strings.ToLower(s), " ")); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// faults returns what breaks the rules of the package comment.
func faults(number int64, sql string) (found []string) {
	all := statements(sql)
	exempt := slices.Clone(small)
	for _, s := range all {
		if m := created.FindStringSubmatch(s); m != nil {
			exempt = append(exempt, m[1])
		}
	}
	var tables []string
	for _, s := range all {
		if m := altered.FindStringSubmatch(s); len(m) > 0 && !slices.Contains(exempt, m[1]) {
			tables = append(tables, m[1])
			found = append(found, alterFaults(s, m[2])...)
		}
		if m := indexed.FindStringSubmatch(s); len(m) > 0 && !slices.Contains(exempt, m[2]) {
			found = append(found, indexFaults(m[1] != "", sql, all)...)
		}
		if m := changed.FindStringSubmatch(s); len(m) > 0 && !slices.Contains(exempt, m[1]) {
			found = append(found, s+": a program changes rows, in batches")
		}
	}
	slices.Sort(tables)
	if len(slices.Compact(tables)) > 1 {
		found = append(found, "a file alters one table")
	}
	joined := strings.Join(all, "; ")
	if strings.Contains(joined, "not valid") && strings.Contains(joined, "validate constraint") {
		found = append(found, "a later file validates a constraint")
	}
	return append(found, contractFaults(number, all)...)
}

// alterFaults checks the actions of one ALTER TABLE.
func alterFaults(statement, actions string) (found []string) {
	for a := range strings.SplitSeq(action.ReplaceAllString(actions, "\n$1 "), "\n") {
		if !strings.HasPrefix(a, "add ") {
			continue
		}
		if checked.MatchString(a) && !strings.Contains(a, "not valid") {
			found = append(found, statement+": add the constraint NOT VALID")
		}
		if unique.MatchString(a) && !strings.Contains(a, "using index") {
			found = append(found, statement+": add the constraint USING INDEX")
		}
		given := strings.Contains(a, " default ")
		if required := strings.Contains(a, "not null"); (required || given) && !constant.MatchString(a) && !checked.MatchString(a) {
			found = append(found, statement+": a new column is nullable or has a constant default")
		}
	}
	return found
}

func indexFaults(concurrent bool, sql string, all []string) []string {
	if !concurrent {
		return []string{"make the index CONCURRENTLY"}
	}
	m := alone.FindStringSubmatch(strings.Join(all, "; "))
	if len(m) == 0 || m[1] != m[2] || !strings.Contains(sql, "-- +goose NO TRANSACTION") {
		return []string{"the index needs a file of its own, in the form of the package comment"}
	}
	return nil
}

// contractFaults checks that a file that breaks earlier programs says so.
func contractFaults(number int64, all []string) []string {
	var breaks string
	var from int64
	for _, s := range all {
		if breaking.MatchString(additive.ReplaceAllString(s, "")) {
			breaks = s
		}
		if m := oldest.FindStringSubmatch(s); m != nil {
			from, _ = strconv.ParseInt(m[1], 10, 64)
		}
	}
	switch {
	case breaks != "" && from == 0:
		return []string{breaks + ": set oldest_program in schema_programs"}
	case from >= number:
		return []string{"the programs that work with the schema are released before the migration: oldest_program is a number before its own"}
	}
	return nil
}
