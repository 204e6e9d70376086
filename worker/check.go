package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/archive"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// CheckOptions are the options of Check.
type CheckOptions struct {
	Temporal temporal.Config
	// Getenv reads the environment.
	Getenv func(string) string
}

// checkConfig is the configuration of Check.
type checkConfig struct {
	DatabaseURL    schema.Secret `env:"GPUAAS_DATABASE_URL" help:"Postgres connection URL. Without it, the database is not checked."`
	VaultAddr      string        `env:"VAULT_ADDR" help:"URL of Vault. Without it, Vault is not checked."`
	VaultTokenFile string        `env:"GPUAAS_VAULT_TOKEN_FILE" help:"File with a token that may read Vault's mounts and keys. Without it, only Vault's health is checked."`
	Env            string        `env:"GPUAAS_ENV" help:"Name of the environment."`
	ArchiveDir     string        `env:"GPUAAS_AUDIT_ARCHIVE_DIR" help:"Folder of archived audit events, if it is mounted here."`
}

// checkTime bounds each check.
const checkTime = 10 * time.Second

// checkRun is one run of Check.
type checkRun struct {
	config checkConfig
	report diagnosis.Report
}

// Check checks the parts of an installation: the database, Vault, Temporal with its workers and
// schedules, the providers and the folder of the archive. It changes nothing. A part that the
// environment does not name is skipped. The error is one of the configuration.
func Check(ctx context.Context, o CheckOptions) (diagnosis.Report, error) {
	var r checkRun
	if err := daemon.Load(&r.config, o.Getenv); err != nil {
		return r.report, schema.AsError(err).WithNext("gpuaas admin check --help")
	}
	r.database(ctx)
	r.vault(ctx)
	r.temporal(ctx, o.Temporal)
	r.archive()
	return r.report, nil
}

// add adds a check: answer without an error, otherwise a fault with the error's message and next
// step.
func (r *checkRun) add(name, asked, answer string, err error) bool {
	c := diagnosis.Check{Name: name, Asked: asked}
	if err == nil {
		return r.report.Add(c.OK(answer))
	}
	e := schema.AsError(err)
	return r.report.Add(c.Failed(e.Message, diagnosis.ControlPlane, cmp.Or(e.Next, unreachableNext(name))))
}

// unreachableNext is the next step of a check whose error has none.
func unreachableNext(name string) string {
	switch name {
	case "database":
		return "start Postgres, or correct GPUAAS_DATABASE_URL; until then: gpuaas stuck --direct"
	case "vault":
		return "start Vault, or correct VAULT_ADDR"
	}
	return "gpuaas stuck"
}

// skip adds checks that an earlier fault, or the environment, makes pointless.
func (r *checkRun) skip(names ...string) {
	for _, name := range names {
		r.report.Add(diagnosis.Check{Name: name}.Skipped())
	}
}

func (r *checkRun) database(ctx context.Context) {
	rest := []string{"schema", "database roles", "database clock", "providers", "records"}
	if r.config.DatabaseURL.Empty() {
		r.skip(append([]string{"database"}, rest...)...)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	db, err := store.Open(ctx, store.Config{URL: r.config.DatabaseURL.Reveal(), Name: "gpuaas-admin-check", MaxConns: 2, CallTimeout: checkTime})
	if !r.add("database", "a connection to Postgres", "connected", err) {
		r.skip(rest...)
		return
	}
	defer db.Close()
	if !r.add("schema", "whether the schema is that of this version", "up to date", db.CheckSchema(ctx)) {
		r.skip(rest[1:]...)
		return
	}
	missing, err := db.MissingRoles(ctx)
	if err == nil && len(missing) > 0 {
		err = schema.NewError(schema.KindInternal, "missing or without privileges: %s", strings.Join(missing, ", ")).WithNext("gpuaas admin setup")
	}
	r.add("database roles", "the roles of the processes and their privileges", "present", err)
	at, err := db.Now(ctx)
	r.clock("database clock", at, err)
	r.providers(ctx, db)
	r.records(ctx, db)
}

// clock compares a server's clock with that of this machine.
func (r *checkRun) clock(name string, at time.Time, err error) {
	skew := time.Since(at).Round(time.Second)
	if err == nil && skew.Abs() > daemon.MaxSkew {
		err = schema.NewError(schema.KindInternal, "it differs from this machine's clock by %s", lifecycle.Span(skew.Abs())).
			WithNext("correct the clock that is wrong: timedatectl on both machines")
	}
	r.add(name, "the difference from this machine's clock", "less than "+lifecycle.Span(daemon.MaxSkew), err)
}

func (r *checkRun) providers(ctx context.Context, db *store.Store) {
	providers, err := db.Machines.Providers(ctx)
	if err != nil {
		r.add("providers", "the providers that workers describe", "", err)
	}
	for _, p := range providers {
		var fault error
		answer := "described, and enabled"
		switch age := time.Since(p.UpdatedAt); {
		case age > machine.DescriptionLife:
			fault = schema.NewError(schema.KindInternal, "no worker has described it for %s", lifecycle.Span(age)).WithNext("start a gpuaas-worker that has the provider")
		case p.Disabled != "" && p.Creates:
			answer = "not configured: " + text.Line(p.Disabled, 200) // most installations use few of the providers
		}
		r.add("provider "+p.Name, "whether a worker has the provider, and whether it is configured", answer, fault)
	}
}

// records adds the faults that the database shows.
func (r *checkRun) records(ctx context.Context, db *store.Store) {
	faults, err := db.Admin.Faults(ctx)
	faults = slices.DeleteFunc(faults, func(f wire.ControlPlaneFault) bool { return f.Component == "health-recovery" }) // faults of nodes
	if err == nil && len(faults) > 0 {
		err = schema.NewError(schema.KindInternal, "%s, the first one: %s", text.Count(len(faults), "fault"), faults[0].Message).WithNext(cmp.Or(faults[0].Next, "gpuaas stuck"))
	}
	r.add("records", "identities, verifier sets, undelivered results, old records and surplus machines", "no fault", err)
}

func (r *checkRun) vault(ctx context.Context) {
	if r.config.VaultAddr == "" {
		r.skip("vault", "vault clock", "vault objects")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	at, err := vault.Reach(ctx, r.config.VaultAddr)
	if !r.add("vault", "whether Vault responds and is unsealed", "unsealed", err) {
		r.skip("vault clock", "vault objects")
		return
	}
	r.clock("vault clock", at, nil)
	if r.config.VaultTokenFile == "" || r.config.Env == "" {
		r.skip("vault objects")
		return
	}
	missing, err := r.missingObjects(ctx)
	if err == nil && len(missing) > 0 {
		err = schema.NewError(schema.KindInternal, "missing: %s", strings.Join(missing, ", ")).WithNext("gpuaas admin setup")
	}
	r.add("vault objects", "the CAs, their roles and the signing keys", "present", err)
}

func (r *checkRun) missingObjects(ctx context.Context) ([]string, error) {
	admin, err := vault.NewAdmin(vault.AdminConfig{Address: r.config.VaultAddr, TokenFile: r.config.VaultTokenFile, Env: r.config.Env})
	if err != nil {
		return nil, err
	}
	return admin.Missing(ctx)
}

func (r *checkRun) temporal(ctx context.Context, conf temporal.Config) {
	rest := []string{"search attributes", "workers", "schedules and operations"}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	t, err := temporal.Dial(conf)
	if err != nil {
		r.add("temporal", "the namespace and how long it keeps closed operations", "", err)
		r.skip(rest...)
		return
	}
	defer t.Close()
	keeps, err := t.Installation.Retention(ctx)
	if err == nil && keeps < leastRetention {
		err = schema.NewError(schema.KindInternal, "namespace %s keeps closed operations for only %s", t.Namespace(), lifecycle.Span(keeps)).
			WithNext("raise the retention of the namespace to at least " + lifecycle.Span(leastRetention))
	}
	r.add("temporal", "the namespace and how long it keeps closed operations", fmt.Sprintf("%s keeps them for %s", t.Namespace(), lifecycle.Span(keeps)), err)
	if schema.KindOf(err) == schema.KindServiceUnavailable {
		r.skip(rest...)
		return
	}
	r.add("search attributes", "the search attributes of operations", "present", t.Installation.MissingAttributes(ctx))
	r.workers(ctx, t)
	faults := t.Faults(ctx)
	for _, f := range faults {
		r.add("temporal: "+f.Component, "workers, schedules and calls that fail", "", schema.NewError(schema.KindInternal, "%s", f.Message).WithReason(f.Reason).WithNext(f.Next))
	}
	if len(faults) == 0 {
		r.add("schedules and operations", "schedules that run, and calls that fail", text.Count(len(lifecycle.Schedules()), "schedule")+" run, no call fails", nil)
	}
}

// workers reads which versions of the worker poll, and which one is current.
func (r *checkRun) workers(ctx context.Context, t *temporal.Client) {
	routing, err := t.Deployments.Routing(ctx, temporal.PollerFresh)
	answer := "none poll"
	if len(routing.Polling) > 0 {
		var names []string
		for _, build := range routing.Polling {
			names = append(names, temporal.VersionName(build))
		}
		slices.Sort(names)
		answer = "polling: " + strings.Join(names, ", ") + "; current: " + temporal.VersionName(routing.Current)
	}
	if err == nil && len(routing.Polling) == 0 {
		err = schema.NewError(schema.KindInternal, "no gpuaas-worker polls").WithNext("start a gpuaas-worker")
	}
	r.add("workers", "the versions of gpuaas-worker that poll", answer, err)
}

// leastArchive is the free space of the archive's folder below which it is a fault.
const leastArchive = 1 << 30

func (r *checkRun) archive() {
	if r.config.ArchiveDir == "" {
		r.skip("archive")
		return
	}
	free, err := archive.New(r.config.ArchiveDir).Free()
	if err == nil && free < leastArchive {
		err = schema.NewError(schema.KindInternal, "only %d MiB free", free>>20).WithNext("free space in the folder, or move the archive")
	}
	r.add("archive", "whether the folder of archived audit events can be written, and its free space", fmt.Sprintf("writable, %d GiB free", free>>30), err)
}
