package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
)

// trap replaces a table, which is then in the dump as a view that calls a function.
const trap = `CREATE FUNCTION public.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN %[2]s END $$;
	ALTER TABLE %[1]s RENAME TO trapped; CREATE VIEW %[1]s AS SELECT * FROM trapped WHERE public.trap()`

// TestDrillLosesScratch: a server that fails while the copy is read is no fault of the dump. The error names the
// scratch database and the next step.
func TestDrillLosesScratch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ table, does, says string }{
		"lost before the schema":      {"schema_programs", "RETURN pg_terminate_backend(pg_backend_pid());", "temporarily unavailable"},
		"full before the audit trail": {"audit_heads", "RAISE EXCEPTION 'no space' USING ERRCODE = '53100';", "has a full disk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newDrillBench(t)
			b.exec(fmt.Sprintf(trap, c.table, c.does))
			r, err := Drill(t.Context(), DrillOptions{File: b.dumped(), Getenv: b.getenv, Progress: &b.progress})
			require.Empty(t, r.Faults(), "the dump has no fault")
			require.ErrorContains(t, err, "the scratch database gpuaas_drill_")
			require.ErrorContains(t, err, c.says)
			require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
			require.Contains(t, schema.AsError(err).Next, "free disk space")
			require.Empty(t, b.scratches())
		})
	}
}

// TestDrillLosesRestore: the same for a server that fails during the restore.
func TestDrillLosesRestore(t *testing.T) {
	t.Parallel()
	for says, does := range map[string]string{
		"terminating connection": "RETURN pg_terminate_backend(pg_backend_pid());",
		"wrote only 4096 of 8192": `RAISE EXCEPTION 'could not extend file "base/1/2": wrote only 4096 of 8192 bytes at block 3'
			USING ERRCODE = '53100', HINT = 'Check free disk space.';`,
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			b := newDrillBench(t)
			b.exec(`CREATE FUNCTION public.trap(int) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
					IF NOT starts_with(current_database(), 'gpuaas_drill_') THEN RETURN true; END IF; ` + does + ` END $$;
				CREATE TABLE trapped (i int CHECK (public.trap(i))); INSERT INTO trapped VALUES (1)`)
			r, err := Drill(t.Context(), DrillOptions{File: b.dumped(), Getenv: b.getenv, Progress: &b.progress})
			require.Empty(t, r.Faults(), "the dump has no fault")
			require.ErrorContains(t, err, "the scratch database gpuaas_drill_")
			require.ErrorContains(t, err, says)
			require.Equal(t, 1, strings.Count(err.Error(), says), "%v", err)
			require.Contains(t, schema.AsError(err).Next, "free disk space")
		})
	}
}

// TestDrillOfOtherSchema: a dump without a table that this version reads is a fault, wherever the table is read.
func TestDrillOfOtherSchema(t *testing.T) {
	t.Parallel()
	for table, check := range map[string]string{"schema_programs": "schema", "audit_heads": "audit trail"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			b := newDrillBench(t)
			b.exec("ALTER TABLE " + table + " RENAME TO renamed")
			file := b.dumped()
			b.exec("ALTER TABLE renamed RENAME TO " + table)
			results, faults := b.drill(file)
			require.Len(t, faults, 1)
			require.Equal(t, check, faults[0].Name)
			require.Contains(t, faults[0].Answer, `relation "`+table+`" does not exist`)
			require.NotEmpty(t, faults[0].Next)
			require.Equal(t, diagnosis.Skipped, results["open operations"])
		})
	}
}

// lineFunc is called for each line of progress.
type lineFunc func(line string)

func (f lineFunc) Write(p []byte) (int, error) {
	f(string(p))
	return len(p), nil
}

// TestDrillOfBusyDatabase: rows that are written while a drill makes its dump are no difference between the dump and
// the database.
func TestDrillOfBusyDatabase(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	r, err := Drill(t.Context(), DrillOptions{Getenv: b.getenv, Progress: lineFunc(func(line string) {
		if strings.HasPrefix(line, "dumping") {
			b.register("gpu-3")
		}
	})})
	require.NoError(t, err)
	require.Equal(t, 3, b.number("SELECT count(*) FROM nodes"))
	i := slices.IndexFunc(r.Checks, func(c diagnosis.Check) bool { return c.Name == "rows" })
	require.Equal(t, diagnosis.OK, r.Checks[i].Result, r.Checks[i].Answer)
	require.Contains(t, r.Checks[i].Answer, "nodes 2 of 2")
}
