package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
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
	db, err := openForDrill(ctx, r.config.DatabaseURL.Reveal())
	if err != nil {
		return err
	}
	defer db.Close()
	file, rows, remove, err := r.dump(ctx, db.Drill())
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
		return scratchFault(err, name)
	}
	if !r.add("restore", "whether the whole dump can be restored", "in "+lifecycle.Span(time.Since(begun).Round(time.Second)), err) {
		r.skip()
		return nil
	}
	err = r.check(ctx, url, rows)
	if source, ok := errors.AsType[*sourceError](err); ok {
		return source.error
	}
	if lacks := postgres.Lacks(err); lacks != "" {
		r.lacks(lacks)
		return nil
	}
	return scratchFault(err, name)
}

// scratchFault names the scratch database in an error of its server.
func scratchFault(err error, name string) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	e := schema.AsError(err)
	return schema.Wrap(e.Kind, e.Err, "the scratch database %s: %s", name, e.Message).WithReason(e.Reason).
		WithNext(cmp.Or(e.Next, "check that the server of the scratch database runs and has free disk space, and repeat the drill"))
}

func openForDrill(ctx context.Context, url string) (*store.Store, error) {
	return store.Open(ctx, store.Config{URL: url, Name: "gpuaas-drill", MaxConns: 2, CallTimeout: drillCall, StatementTimeout: drillCall})
}

// sourceRows returns the rows of the database that the dump must have. newest is the newest audit event of the dump.
type sourceRows func(ctx context.Context, newest *time.Time) (store.DrillCounts, error)

// sourceError is an error of the database that the dump is of, and not of the scratch database.
type sourceError struct{ error }

// dump returns the dump that the drill was given, or makes one, which remove removes.
func (r *drillRun) dump(ctx context.Context, db *store.Drill) (file string, rows sourceRows, remove func(), err error) {
	if r.File != "" {
		if _, err := os.Stat(r.File); err != nil {
			return "", nil, nil, schema.Wrap(schema.KindNotFound, err, "reading the dump").WithNext("name a file that gpuaas admin backup wrote")
		}
		return r.File, db.Counts, func() {}, nil
	}
	folder, err := os.MkdirTemp("", "gpuaas-drill-")
	if err != nil {
		return "", nil, nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) } // the system removes what is left
	file = filepath.Join(folder, "gpuaas.dump")
	snapshot, err := db.Snapshot(ctx, func(snapshot string) error {
		r.say("dumping the database into %s", file)
		return postgres.Dump(ctx, r.config.DatabaseURL.Reveal(), file, snapshot)
	})
	if err != nil {
		remove()
	}
	return file, func(context.Context, *time.Time) (store.DrillCounts, error) { return snapshot, nil }, remove, err
}

func (r *drillRun) say(format string, args ...any) {
	fmt.Fprintf(r.Progress, format+"\n", args...)
}
