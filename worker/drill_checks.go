package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/migrations"
	"github.com/gpuaas/gpuaas/schema/text"
)

// check checks the restored copy.
func (r *drillRun) check(ctx context.Context, url string, rows sourceRows) error {
	db, err := openForDrill(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	known, err := r.schema(ctx, db.Drill())
	if err != nil {
		return err
	}
	if !known {
		r.skip()
		return nil
	}
	restored, err := db.Drill().Counts(ctx, nil)
	if err != nil {
		return err
	}
	source, err := rows(ctx, restored.NewestAudit)
	if err != nil {
		return &sourceError{err}
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
	if err != nil {
		return false, err
	}
	c := diagnosis.Check{Name: "schema", Asked: "whether this version works with the schema of the dump"}
	mine := migrations.Latest()
	switch {
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

// rows compares the copy with the rows of the database that are as old. Rows that are never deleted cannot be
// more than those.
func (r *drillRun) rows(source, restored store.DrillCounts) {
	c := diagnosis.Check{Name: "rows", Asked: "the rows of the dump, of those in the database that are not newer than the dump"}
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
	r.report.Add(c.Failed(fmt.Sprintf("%d nodes with an operation that is not theirs, %d nodes behind their operations or certificates, %d tasks without node or operation",
		n.Claims, n.Fences, n.Tasks), diagnosis.Operator, "do not restore this dump; use another one, and check the database that it is of"))
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

// add adds a check: answer without an error, otherwise a fault with the error's message and next step.
func (r *drillRun) add(name, asked, answer string, err error) bool {
	c := diagnosis.Check{Name: name, Asked: asked}
	if err == nil {
		return r.report.Add(c.OK(answer))
	}
	e := schema.AsError(err)
	return r.report.Add(c.Failed(e.Message, diagnosis.Operator, cmp.Or(e.Next, "use another dump, and check the job that makes them")))
}

// left are the names of the checks that are not in the report, in their order.
func (r *drillRun) left() []string {
	return slices.DeleteFunc([]string{"schema", "age", "rows", "audit trail", "nodes and operations", "verifier sets", "open operations"}, func(name string) bool {
		return slices.ContainsFunc(r.report.Checks, func(c diagnosis.Check) bool { return c.Name == name })
	})
}

// lacks adds a fault of the next check, which could not read what the dump lacks, and skips those after it.
func (r *drillRun) lacks(what string) {
	c := diagnosis.Check{Name: r.left()[0], Asked: "whether the dump has what this version reads"}
	r.report.Add(c.Failed("the dump is not a whole dump of gpuaas: "+what, diagnosis.Operator, "use a dump of the whole database that GPUAAS_DATABASE_URL names"))
	r.skip()
}

// skip adds the checks that an earlier fault makes pointless.
func (r *drillRun) skip() {
	for _, name := range r.left() {
		r.report.Add(diagnosis.Check{Name: name}.Skipped())
	}
}
