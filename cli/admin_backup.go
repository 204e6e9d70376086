package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
)

// Backup is a dump that Platform.Backup wrote.
type Backup struct {
	File  string    `json:"file"`
	Bytes int64     `json:"bytes"`
	At    time.Time `json:"at"`
}

func newAdminBackup(e *env) *cobra.Command {
	return takesFile(1, e.command("backup FILE", "Write a dump of the database",
		`Writes a dump of the database into FILE, in pg_dump's custom format. The dump is of one moment,
and the programs work meanwhile. FILE must not exist; a command that fails leaves no file, and
one that is killed at most FILE.part-…, which you can delete. Only its owner may read FILE: it
contains hashes of tokens and everything that nodes reported.

Vault and Temporal have backups of their own. The command needs pg_dump of the server's version
or a later one. The password is that of the URL, or of the file that PGPASSFILE names.

Environment:
  GPUAAS_DATABASE_URL      the database, as the owner of its tables (or GPUAAS_DATABASE_URL_FILE)`,
		"  gpuaas admin backup /var/backups/gpuaas.dump\n  gpuaas admin backup /var/backups/gpuaas.dump -o json",
		func(ctx context.Context, file string) error {
			if e.platform.Backup == nil {
				return errNotLinked("backup")
			}
			b, err := e.platform.Backup(ctx, file, editor{e.stderr, clean})
			if err != nil {
				return err
			}
			return e.print(b, func(w io.Writer) {
				fields(w, "File:", b.File, "Size:", strconv.FormatInt(b.Bytes, 10)+" bytes", "As of:", b.At.Format(time.RFC3339), "Check it:", "gpuaas admin drill "+b.File)
			}, b.File)
		}))
}

// takesFile lets a command have a path as its argument; least is 0 if it is optional.
func takesFile(least int, c *cobra.Command) *cobra.Command {
	if least == 0 {
		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(c.CommandPath(), "unexpected argument %q", args[1])
			}
			return nil
		}
	}
	c.ValidArgsFunction = nil // complete files
	return c
}

func newAdminDrill(e *env) *cobra.Command {
	return takesFile(0, e.command("drill [FILE]", "Restore a dump into a scratch database and check it",
		`Restores the dump FILE into a new database, checks what is in it, and drops that database.
Without FILE, it makes a dump first. It changes nothing in the database of GPUAAS_DATABASE_URL,
and it cannot restore into it: each drill creates a database with a new name, gpuaas_drill_….
If a drill is killed, the next one names the database that is left and drops it. The dump that it
made itself is left in the folder gpuaas-drill-… of TMPDIR, which you can delete.

Checks: the dump can be restored; this version works with its schema; its age; its rows,
compared with the database; the chains of audit events and checkpoints; nodes, operations and
tasks agree; the verifier sets; how many operations are open in it. Each check is ok, failed or
info, which is worth a look.

The scratch database needs as much disk as the database. Its server is that of
GPUAAS_DATABASE_URL, whose role then needs CREATEDB, or that of GPUAAS_DRILL_DATABASE_URL. The
command needs pg_dump and pg_restore of the server's version or a later one.

Environment:
  GPUAAS_DATABASE_URL        the database, as the owner of its tables (or GPUAAS_DATABASE_URL_FILE)
  GPUAAS_DRILL_DATABASE_URL  any database of another server (or GPUAAS_DRILL_DATABASE_URL_FILE)

The exit code is 1 if a check failed.`,
		"  gpuaas admin drill\n  gpuaas admin drill /var/backups/gpuaas.dump\n  gpuaas admin drill -o json | jq '.checks[] | select(.result == \"failed\")'",
		func(ctx context.Context, file string) error { return runAdminDrill(ctx, e, file) }))
}

func runAdminDrill(ctx context.Context, e *env, file string) error {
	if e.platform.Drill == nil {
		return errNotLinked("drill")
	}
	r, err := e.platform.Drill(ctx, file, editor{e.stderr, clean})
	if err != nil {
		return err
	}
	if err := e.print(r, func(w io.Writer) { writeReport(w, r) }); err != nil {
		return err
	}
	if faults := len(r.Faults()); faults > 0 {
		return &exitError{schema.ExitFailed, []string{fmt.Sprintf("%d of %d checks failed; do not rely on this dump", faults, checked(r))}}
	}
	return nil
}

// checked is the number of checks that were not skipped.
func checked(r diagnosis.Report) (n int) {
	for _, c := range r.Checks {
		if c.Result != diagnosis.Skipped {
			n++
		}
	}
	return n
}
