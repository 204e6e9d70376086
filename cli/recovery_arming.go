package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/text"
)

func newRecoveryArm(e *env) *cobra.Command {
	var r record.Arm
	var dryRun, yes bool
	var c *cobra.Command
	c = e.command("arm", "Let health recovery start repairs",
		`Stores the policy in use as a new version with the mode armed. Before, the command shows
how many repairs would start now, by the decisions of the last round: by their first step
and by region, SKU and rack, and what stops others. If repairs would start, if budgets stop
others, or if the decisions do not show it, it asks for confirmation. If the policy changes
meanwhile, it is not armed.`,
		"  gpuaas recovery arm --dry-run\n  gpuaas recovery arm --reason CHG-204",
		func(ctx context.Context, _ string) error {
			if err := checkReason(c.CommandPath(), r.Reason, !dryRun); err != nil {
				return err
			}
			st, err := decode[record.Status](e.api().GetRecovery(ctx, nil))
			if err != nil {
				return err
			}
			v := previewArm(e.clock.now(), st)
			if dryRun {
				return printArmPreview(e.console, v)
			}
			if err := confirmArm(ctx, e.console, c.CommandPath(), v, yes); err != nil {
				return err
			}
			r.ExpectedDigest = st.Policy.Digest
			p, err := decode[record.Policy](e.api().ArmRecovery(ctx, nil, r))
			if err != nil {
				return err
			}
			return printPolicyChange(e.console, p)
		})
	c.Flags().StringVar(&r.Reason, "reason", "", "reason, kept in the audit trail (required without --dry-run)")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would start; change nothing")
	addYes(c, &yes)
	return c
}

// armPreview is what an armed policy starts in the next round, by the decisions of the last one.
type armPreview struct {
	Policy    record.Policy `json:"policy"`
	DecidedAt time.Time     `json:"decided_at,omitzero"`
	// Unclear is why the decisions do not show what starts, empty if they do.
	Unclear string `json:"unclear,omitempty"`
	// Starts counts the repairs that start, and the maps count them by their first rung and by place.
	Starts  int            `json:"starts"`
	Rungs   map[string]int `json:"rungs"`
	Regions map[string]int `json:"regions"`
	SKUs    map[string]int `json:"skus"`
	Racks   map[string]int `json:"racks"`
	// Stopped counts the nodes whose repair does not start, by brake. NoRepair counts those that have
	// neither a brake nor a rung, for example because every rung was tried.
	Stopped  map[string]int `json:"stopped"`
	NoRepair int            `json:"no_repair"`
}

// staleRound is how long after a round its decisions show what the next one does.
const staleRound = 5 * time.Minute

func previewArm(now time.Time, st record.Status) armPreview {
	v := armPreview{Policy: st.Policy, DecidedAt: st.DecidedAt, Rungs: map[string]int{}, Regions: map[string]int{}, SKUs: map[string]int{},
		Racks: map[string]int{}, Stopped: map[string]int{}}
	for _, n := range st.Nodes {
		switch {
		case n.Brake == recovery.BrakeMonitor: // nothing else stops it
			v.Starts++
			v.Rungs[string(n.Rung)]++
			v.Regions[cmp.Or(n.Region, "-")]++
			v.SKUs[cmp.Or(n.SKU, "-")]++
			v.Racks[cmp.Or(n.Rack, "-")]++
		case n.Brake != "":
			v.Stopped[string(n.Brake)]++
		default:
			v.NoRepair++
		}
	}
	switch {
	case st.DecidedAt.IsZero():
		v.Unclear = "no round has decided yet"
	case st.Policy.Mode == recovery.ModeArmed:
	case st.DecidedAt.Before(st.Policy.At):
		v.Unclear = "no round has decided with this policy yet: repeat the command in 30 seconds"
	case now.Sub(st.DecidedAt) > staleRound:
		v.Unclear = fmt.Sprintf("the last round was %s ago: gpuaas stuck shows why", lifecycle.Span(now.Sub(st.DecidedAt)))
	}
	return v
}

// text is the preview as labels and values.
func (v armPreview) text() []string {
	starts := text.Count(v.Starts, "repair")
	if v.Starts > 0 {
		starts += ": " + countsText(v.Rungs)
	}
	none := ""
	if v.NoRepair > 0 {
		none = text.Count(v.NoRepair, "node")
	}
	pairs := []string{"Policy:", policyText(v.Policy), "Not clear:", v.Unclear, "Starts now:", starts}
	if v.Starts > 0 {
		pairs = append(pairs, "In regions:", countsText(v.Regions), "In SKUs:", countsText(v.SKUs), "In racks:", countsText(v.Racks))
	}
	return append(pairs, "Stopped by:", countsText(v.Stopped), "No repair:", none)
}

// maxCounted is how many names countsText lists.
const maxCounted = 10

// countsText lists counts, the largest first: "2 reboot, 1 reset_gpu".
func countsText(counts map[string]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(-cmp.Compare(counts[a], counts[b]), cmp.Compare(a, b))
	})
	var parts []string
	for _, name := range names[:min(len(names), maxCounted)] {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], clean(name)))
	}
	if more := len(names) - maxCounted; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

func printArmPreview(e *console, v armPreview) error {
	if err := e.print(v, func(w io.Writer) { fields(w, v.text()...) }); err != nil {
		return err
	}
	return e.nothingChanged(0, "repair")
}

// confirmArm shows the preview, and asks if arming starts repairs now or if that is not clear. A budget
// that stops repairs starts them one after the other.
func confirmArm(ctx context.Context, e *console, command string, v armPreview, yes bool) error {
	if v.Policy.Mode == recovery.ModeArmed {
		return nil
	}
	for pair := range slices.Chunk(v.text(), 2) {
		if pair[1] != "" {
			e.message("%s %s", pair[0], pair[1])
		}
	}
	waiting := v.Stopped[string(recovery.BrakeBudget)]
	what := fmt.Sprintf("arm health recovery: %s starts now", text.Count(v.Starts, "repair"))
	switch {
	case v.Unclear != "":
		what = "arm health recovery: what starts is not clear, because " + v.Unclear
	case v.Starts+waiting == 0:
		return nil
	case v.Starts != 1:
		what = fmt.Sprintf("arm health recovery: %d repairs start now", v.Starts)
	}
	if waiting > 0 {
		what += fmt.Sprintf(", and %d wait for a budget", waiting)
	}
	return e.confirm(ctx, command, what, yes)
}
