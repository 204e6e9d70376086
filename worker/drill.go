package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/migrations"
	"github.com/gpuaas/gpuaas/schema/text"
)

// DrillOptions are the options of Drill.
type DrillOptions struct {
	// File is the path of the dump. Without it, the drill makes one.
	File string
	// Getenv reads the environment.
	Getenv func(string) string
	// Progress receives a line for each step, and every few seconds of a long one.
	Progress io.Writer
}

// drillConfig is the configuration of Drill.
type drillConfig struct {
	DatabaseURL schema.Secret `env:"GPUAAS_DATABASE_URL,required" help:"Postgres connection URL of the owner of the tables."`
	ScratchURL  schema.Secret `env:"GPUAAS_DRILL_DATABASE_URL" help:"Postgres connection URL of another server, for the scratch database. Its role needs CREATEDB."`
}

const (
	// drillCall bounds one statement, which may read a whole table.
	drillCall = 30 * time.Minute
	// oldDump is the age of the newest audit event of a dump from which the report warns.
	oldDump = 25 * time.Hour
	// progressEvery is the interval of the progress of a long step.
	progressEvery = 5 * time.Second
)

// drillRun is one run of Drill.
type drillRun struct {
	DrillOptions
	config drillConfig
	report diagnosis.Report
}

// Drill restores a dump into a scratch database, checks what is in it, and drops it. It changes nothing in
// the database of the URL. A fault of the dump is in the report; the error is that of the environment, for
// example a server that does not respond. Scratch databases of drills that were killed are dropped.
func Drill(ctx context.Context, o DrillOptions) (diagnosis.Report, error) {
	r := &drillRun{DrillOptions: o}
	if err := daemon.Load(&r.config, o.Getenv); err != nil {
		return r.report, schema.AsError(err).WithNext("gpuaas admin drill --help")
	}
	server := r.config.DatabaseURL.Reveal()
	if !r.config.ScratchURL.Empty() {
		server = r.config.ScratchURL.Reveal()
	}
	scratch, err := postgres.NewScratch(ctx, server)
	if err != nil {
		return r.report, err
	}
	err = r.run(ctx, scratch)
	return r.report, errors.Join(err, scratch.Close(ctx))
}

func (r *drillRun) run(ctx context.Context, scratch *postgres.Scratch) error {
	left, err := scratch.Clean(ctx)
	if err != nil {
		return err
	}
	for _, name := range left {
		r.say("dropped %s, which a drill left that was killed", name)
	}
	source, err := r.counts(ctx, r.config.DatabaseURL.Reveal())
	if err != nil {
		return err
	}
	file, remove, err := r.dump(ctx)
	if err != nil {
		return err
	}
	defer remove()
	name, url, err := scratch.Create(ctx)
	if err != nil {
		return err
	}
	r.say("restoring %s into %s", file, name)
	begun := time.Now()
	err = postgres.Restore(ctx, url, file)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if schema.KindOf(err) == schema.KindServiceUnavailable { // a fault of the server says nothing about the dump
		return err
	}
	if !r.add("restore", "whether the whole dump can be restored", "in "+lifecycle.Span(time.Since(begun).Round(time.Second)), err) {
		r.skip("schema", "age", "rows", "audit trail", "nodes and operations", "verifier sets", "open operations")
		return nil
	}
	return r.check(ctx, url, source)
}

// counts reads the rows of the database of the URL.
func (r *drillRun) counts(ctx context.Context, url string) (store.DrillCounts, error) {
	db, err := openForDrill(ctx, url)
	if err != nil {
		return store.DrillCounts{}, err
	}
	defer db.Close()
	return db.Drill().Counts(ctx)
}

func openForDrill(ctx context.Context, url string) (*store.Store, error) {
	return store.Open(ctx, store.Config{URL: url, Name: "gpuaas-drill", MaxConns: 2, CallTimeout: drillCall, StatementTimeout: drillCall})
}

// dump returns the dump that the drill was given, or makes one, which remove removes.
func (r *drillRun) dump(ctx context.Context) (file string, remove func(), err error) {
	if r.File != "" {
		if _, err := os.Stat(r.File); err != nil {
			return "", nil, schema.Wrap(schema.KindNotFound, err, "reading the dump").WithNext("name a file that gpuaas admin backup wrote")
		}
		return r.File, func() {}, nil
	}
	folder, err := os.MkdirTemp("", "gpuaas-drill-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) } // the system removes what is left
	file = filepath.Join(folder, "gpuaas.dump")
	r.say("dumping the database into %s", file)
	if err := postgres.Dump(ctx, r.config.DatabaseURL.Reveal(), file); err != nil {
		remove()
		return "", nil, err
	}
	return file, remove, nil
}

// check checks the restored copy.
func (r *drillRun) check(ctx context.Context, url string, source store.DrillCounts) error {
	db, err := openForDrill(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	if known, err := r.schema(ctx, db.Drill()); err != nil || !known {
		r.skip("age", "rows", "audit trail", "nodes and operations", "verifier sets", "open operations")
		return err
	}
	restored, err := db.Drill().Counts(ctx)
	if err != nil {
		return err
	}
	r.age(restored)
	r.rows(source, restored)
	for _, check := range []func(context.Context, *store.Drill) error{r.trail, r.damage, r.verifierSets} {
		if err := check(ctx, db.Drill()); err != nil {
			return err
		}
	}
	r.open(restored)
	return nil
}

func (r *drillRun) schema(ctx context.Context, d *store.Drill) (known bool, err error) {
	version, oldest, err := d.Schema(ctx)
	c := diagnosis.Check{Name: "schema", Asked: "whether this version works with the schema of the dump"}
	mine := migrations.Latest()
	switch {
	case errors.Is(err, context.Canceled):
		return false, err
	case err != nil:
		r.report.Add(c.Failed("the dump has no schema of gpuaas: "+schema.AsError(err).Message, diagnosis.Operator, "use a dump of the database that GPUAAS_DATABASE_URL names"))
		return false, nil
	case oldest > mine:
		r.report.Add(c.Failed(fmt.Sprintf("version %d needs programs from version %d on; this program has version %d", version, oldest, mine),
			diagnosis.Operator, "run the gpuaas of the version that made the dump"))
		return false, nil
	case version > mine:
		r.report.Add(c.Info(fmt.Sprintf("version %d, which is newer than this program's %d and works with it", version, mine), ""))
	case version < mine:
		r.report.Add(c.Info(fmt.Sprintf("version %d; this program needs version %d", version, mine), "after a restore, run gpuaas admin setup"))
	default:
		r.report.Add(c.OK(fmt.Sprintf("version %d", version)))
	}
	return true, nil
}

func (r *drillRun) age(n store.DrillCounts) {
	c := diagnosis.Check{Name: "age", Asked: "how old the newest audit event is: what happened later is lost"}
	if n.NewestAudit == nil {
		r.report.Add(c.Failed("the dump has no audit event", diagnosis.Operator, "use a dump of a database that is in use"))
		return
	}
	age := time.Since(*n.NewestAudit).Round(time.Second)
	answer := fmt.Sprintf("the newest audit event is %s old, from %s", lifecycle.Span(age), n.NewestAudit.UTC().Format(time.RFC3339))
	if age > oldDump {
		r.report.Add(c.Info(answer, "make dumps more often, or check the job that makes them"))
		return
	}
	r.report.Add(c.OK(answer))
}

// rows compares the copy with the database. Rows that are never deleted cannot be more than those of the
// database; fewer are those of the time since the dump.
func (r *drillRun) rows(source, restored store.DrillCounts) {
	c := diagnosis.Check{Name: "rows", Asked: "the rows of the dump, and those of the database now"}
	var parts []string
	missing, more := "", ""
	for _, n := range []struct {
		name             string
		source, restored int64
		deleted          bool // by retention
	}{
		{"nodes", source.Nodes, restored.Nodes, false}, {"operations", source.Operations, restored.Operations, true},
		{"tasks", source.Tasks, restored.Tasks, true}, {"audit events", source.AuditEvents, restored.AuditEvents, true},
		{"certificates", source.Certificates, restored.Certificates, true}, {"verifier sets", source.VerifierSets, restored.VerifierSets, false},
	} {
		parts = append(parts, fmt.Sprintf("%s %d of %d", n.name, n.restored, n.source))
		if n.restored == 0 && n.source > 0 {
			missing = cmp.Or(missing, n.name)
		}
		if n.restored > n.source && !n.deleted {
			more = cmp.Or(more, n.name)
		}
	}
	answer := strings.Join(parts, ", ")
	switch {
	case missing != "":
		r.report.Add(c.Failed("no "+missing+": "+answer, diagnosis.Operator, "check which database the job of the dumps reads"))
	case more != "":
		r.report.Add(c.Info("more "+more+" than the database: "+answer, "check that the dump is of this database, and whether the database was restored since"))
	default:
		r.report.Add(c.OK(answer))
	}
}

func (r *drillRun) trail(ctx context.Context, d *store.Drill) error {
	said := time.Now()
	trail, err := d.Trail(ctx, func(t store.DrillTrail) {
		if time.Since(said) >= progressEvery {
			said = time.Now()
			r.say("verified %s of the audit trail", text.Count(int(t.Events), "event"))
		}
	})
	if err != nil {
		return err
	}
	c := diagnosis.Check{Name: "audit trail", Asked: "the chains of audit events and checkpoints; gpuaas audit --verify also checks the signatures"}
	if trail.Fault != "" {
		r.report.Add(c.Failed(trail.Fault, diagnosis.Operator, "compare with gpuaas audit --verify of the database: if that has no fault, the dump was changed"))
		return nil
	}
	r.report.Add(c.OK(fmt.Sprintf("%s of %s and %s", text.Count(int(trail.Events), "event"), text.Count(int(trail.Streams), "stream"), text.Count(int(trail.Checkpoints), "checkpoint"))))
	return nil
}

func (r *drillRun) damage(ctx context.Context, d *store.Drill) error {
	n, err := d.Damage(ctx)
	if err != nil {
		return err
	}
	c := diagnosis.Check{Name: "nodes and operations", Asked: "rows that contradict others"}
	if n == (store.DrillDamage{}) {
		r.report.Add(c.OK("none"))
		return nil
	}
	r.report.Add(c.Failed(fmt.Sprintf("%d nodes with an operation that is not theirs, %d nodes behind their operations or certificates, %d tasks without node or operation, %d invalid indexes",
		n.Claims, n.Fences, n.Tasks, n.InvalidIndexes), diagnosis.Operator, "do not restore this dump; use another one, and check the database that it is of"))
	return nil
}

func (r *drillRun) verifierSets(ctx context.Context, d *store.Drill) error {
	newest, fault, err := d.VerifierSets(ctx)
	if err != nil {
		return err
	}
	c := diagnosis.Check{Name: "verifier sets", Asked: "whether the sets can be read, and how long the newest one is valid"}
	left := time.Until(newest.Doc.ExpiresAt).Round(time.Hour)
	switch {
	case fault != "":
		r.report.Add(c.Failed(fault, diagnosis.Operator, "do not restore this dump"))
	case newest.Doc.Version == 0:
		r.report.Add(c.Failed("there is none", diagnosis.Operator, "use a dump of a database that gpuaas admin setup prepared"))
	case left <= 0:
		r.report.Add(c.Info(fmt.Sprintf("set %d has expired", newest.Doc.Version), "after a restore, gpuaas admin setup publishes a set"))
	default:
		r.report.Add(c.OK(fmt.Sprintf("set %d, valid for %s", newest.Doc.Version, lifecycle.Span(left))))
	}
	return nil
}

func (r *drillRun) open(n store.DrillCounts) {
	c := diagnosis.Check{Name: "open operations", Asked: "operations that run or wait in the dump"}
	answer := fmt.Sprintf("%d, of which %d are parked", n.Open, n.Parked)
	if n.Open == 0 {
		r.report.Add(c.OK(answer))
		return
	}
	r.report.Add(c.Info(answer, "after a restore, gpuaas admin restore-mode start ends those whose run has ended; see docs/operating.md"))
}

func (r *drillRun) say(format string, args ...any) {
	fmt.Fprintf(r.Progress, format+"\n", args...)
}

// add adds a check: answer without an error, otherwise a fault with the error's message and next step.
func (r *drillRun) add(name, asked, answer string, err error) bool {
	c := diagnosis.Check{Name: name, Asked: asked}
	if err == nil {
		return r.report.Add(c.OK(answer))
	}
	e := schema.AsError(err)
	return r.report.Add(c.Failed(e.Message, diagnosis.Operator, cmp.Or(e.Next, "use another dump, and check the job that makes them")))
}

// skip adds checks that an earlier fault makes pointless.
func (r *drillRun) skip(names ...string) {
	for _, name := range names {
		r.report.Add(diagnosis.Check{Name: name}.Skipped())
	}
}
