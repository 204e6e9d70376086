package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/text"
)

func newRotate(e *env) *cobra.Command {
	c := newGroup("rotate", "Rotate the keys that nodes trust",
		`Replaces the key that signs tasks (task-key), the root key of verifier sets (set-root) or
the CA of node certificates (node-ca). A rotation stages the new key, activates it, waits
until nothing needs the old one, and retires the old one. It leaves a phase when every node
has confirmed it; gpuaas rotate show lists the nodes that have not. It can be rolled back
until the old key is retired, which needs an approval. There can be one rotation at a time.
All of these commands except show require the role admin.`)
	c.Example = "  gpuaas rotate task-key --reason 'quarterly rotation' --dry-run\n  gpuaas rotate task-key --reason 'quarterly rotation'\n" +
		"  gpuaas rotate show\n  gpuaas rotate approve --reason CHG-204"
	c.AddCommand(newRotateStart(e, rotation.TaskKey, "Rotate the key that signs tasks"),
		newRotateStart(e, rotation.SetRoot, "Rotate the root key of verifier sets"),
		newRotateStart(e, rotation.NodeCA, "Rotate the CA of node certificates"),
		newRotateShow(e),
		newRotateDecide(e, rotation.Approve, "Allow the phase that cannot be undone", "Approves the retirement of the old key, which cannot be undone."),
		newRotateDecide(e, rotation.Pause, "Hold the rotation in its phase", "Holds the rotation in its phase until gpuaas rotate resume."),
		newRotateDecide(e, rotation.Resume, "Continue a paused rotation", "Continues a paused rotation, and starts its workflow if none runs."),
		newRotateWaive(e),
		newRotateDecide(e, rotation.Rollback, "Undo the rotation",
			"Undoes the rotation: the old key signs again, and the new one is removed once no task needs\nit. It is rejected once the old key is being retired."))
	return c
}

func newRotateStart(e *env, k rotation.Kind, short string) *cobra.Command {
	s := rotation.Start{Kind: k}
	grace := rotation.DefaultGrace
	var c *cobra.Command
	c = e.command(string(k), short,
		short+".\nThe command returns when the rotation has started; follow it with gpuaas rotate show.",
		fmt.Sprintf("  gpuaas rotate %s --reason 'quarterly rotation' --dry-run\n  gpuaas rotate %s --reason 'quarterly rotation'", k, k),
		func(ctx context.Context, _ string) error {
			if err := checkReason(c.CommandPath(), s.Reason, true); err != nil {
				return err
			}
			s.GraceSeconds = new(int64(grace / time.Second))
			return startRotation(ctx, e, s)
		})
	f := c.Flags()
	f.StringVar(&s.Reason, "reason", "", "reason, kept in the audit trail (required)")
	f.DurationVar(&grace, "grace", grace, "how long the old key stays valid after the new one is active")
	f.BoolVar(&s.Approved, "approve", false, "approve the retirement of the old key in advance")
	f.BoolVar(&s.DryRun, "dry-run", false, "show the phases and the nodes that a rotation would wait for now; start nothing")
	return c
}

func newRotateShow(e *env) *cobra.Command {
	return e.command("show", "Show the open rotation, or the last one",
		"Shows the phase of the rotation, what it waits for, and the nodes that have not confirmed\nthe phase's verifier set. If there was no rotation yet, -o json prints an empty object.",
		"  gpuaas rotate show\n  gpuaas rotate show -o json | jq -r '.progress.waiting[].host'",
		func(ctx context.Context, _ string) error {
			v, err := decode[rotation.View](e.api().GetRotation(ctx, nil))
			if schema.KindOf(err) == schema.KindNotFound {
				return printNoRotation(e.console)
			}
			if err != nil {
				return err
			}
			return printRotation(e.console, v)
		})
}

// printNoRotation says that there is no rotation, which is not an error.
func printNoRotation(e *console) error {
	e.message("there is no rotation")
	if e.machine() {
		return e.printMachine(struct{}{})
	}
	return nil
}

func newRotateDecide(e *env, d rotation.Decision, short, long string) *cobra.Command {
	var r rotation.Decide
	var c *cobra.Command
	c = e.command(string(d), short, long, "  gpuaas rotate "+string(d)+" --reason CHG-204",
		func(ctx context.Context, _ string) error { return decideRotation(ctx, e, c, d, r) })
	c.Flags().StringVar(&r.Reason, "reason", "", "reason, kept in the audit trail (required)")
	return c
}

func newRotateWaive(e *env) *cobra.Command {
	var r rotation.Decide
	var c *cobra.Command
	c = e.command("waive", "Do not wait for nodes",
		`Makes the rotation not wait for the named nodes, or for all nodes that have sent no
heartbeat for five minutes. A waived node that returns loads the verifier sets that it
missed, as long as its certificate or recovery token is valid.`,
		"  gpuaas rotate waive --node gpu-17 --reason 'in repair until May'\n  gpuaas rotate waive --offline --reason 'in repair until May'",
		func(ctx context.Context, _ string) error { return decideRotation(ctx, e, c, rotation.Waive, r) })
	f := c.Flags()
	f.StringArrayVar(&r.Nodes, "node", nil, "a `NODE`, by host name or id; may be repeated")
	f.BoolVar(&r.Offline, "offline", false, "all nodes that have sent no heartbeat for five minutes")
	f.StringVar(&r.Reason, "reason", "", "reason, kept in the audit trail (required)")
	completes(c, "node", func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return e.completeNode(c, nil, prefix)
	})
	return c
}

func decideRotation(ctx context.Context, e *env, c *cobra.Command, d rotation.Decision, r rotation.Decide) error {
	if err := checkReason(c.CommandPath(), r.Reason, true); err != nil {
		return err
	}
	v, err := decode[rotation.View](e.api().DecideRotation(ctx, d, nil, r))
	if err != nil {
		return err
	}
	return printRotation(e.console, v)
}

// startRotation starts a rotation, or prints its plan in a dry run.
func startRotation(ctx context.Context, e *env, s rotation.Start) error {
	res, err := e.api().StartRotation(ctx, nil, s)
	if s.DryRun {
		p, err := decode[rotation.Plan](res, err)
		if err != nil {
			return err
		}
		return printPlanned(e.console, p)
	}
	v, err := decode[rotation.View](res, err)
	if err != nil {
		return err
	}
	return printRotation(e.console, v)
}

// printPlanned prints the phases of a rotation that was not started, and the nodes that it would
// wait for.
func printPlanned(e *console, p rotation.Plan) error {
	if p.Kind == rotation.RevokeKey {
		e.message("nothing was started; the revocation of %s would have this phase", p.Key)
	} else {
		e.message("nothing was started; a rotation of %s would have these phases, with a grace period of %s", p.Kind,
			lifecycle.Span(time.Duration(p.GraceSeconds)*time.Second))
	}
	return e.print(p, func(w io.Writer) {
		for i, phase := range p.Plan {
			fmt.Fprintf(w, "  %d. %s: %s\n", i+1, phase.Name, phase.Does)
		}
		fmt.Fprintf(w, "It would wait for %s now.\n", text.Count(p.Progress.Nodes-p.Progress.Confirmed-p.Progress.Waived, "node"))
		writeWaiting(w, rotation.Rotation{Kind: p.Kind}, p.Progress)
	}, string(p.Kind))
}

// printRotation prints a rotation and the nodes that it waits for.
func printRotation(e *console, v rotation.View) error {
	return e.print(v, func(w io.Writer) {
		fields(w, "Rotation:", v.RotationID, "Kind:", string(v.Kind), "Phase:", rotationPhase(v), "Keys:", dash(v.OldKey)+" → "+dash(v.NewKey),
			"Confirmed:", confirmedText(v), "Waiting on:", dash(blockersText(v)), "Reason:", v.Reason, "By:", v.Actor)
		if v.Failure != "" {
			fields(w, "Failure:", v.Failure)
		}
		for _, p := range v.Plan {
			fmt.Fprintf(w, "  %s %s: %s\n", mark(v, p), p.Name, p.Does)
		}
		writeWaiting(w, v.Rotation, v.Progress)
	}, v.RotationID)
}

// writeWaiting lists the nodes that have not confirmed.
func writeWaiting(w io.Writer, r rotation.Rotation, p rotation.Progress) {
	for _, n := range p.Waiting {
		fmt.Fprintf(w, "not confirmed: %s (%s, %s)\n", n.Host, n.State, r.Reported(n))
	}
	if hidden := p.Nodes - p.Confirmed - p.Waived - len(p.Waiting); len(p.Waiting) > 0 && hidden > 0 {
		fmt.Fprintf(w, "and %d more nodes\n", hidden)
	}
}

func mark(v rotation.View, p rotation.PhaseSpec) string {
	if p.Name == v.Phase && v.EndedAt == nil {
		return "→"
	}
	return " "
}

func rotationPhase(v rotation.View) string {
	if v.EndedAt != nil {
		return fmt.Sprintf("%s, ended at %s", v.Outcome, v.EndedAt.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s since %s", v.Phase, v.PhaseSince.UTC().Format(time.RFC3339))
}

func confirmedText(v rotation.View) string {
	if v.Kind == rotation.NodeCA {
		return fmt.Sprintf("by %d of %d nodes, %d waived", v.Progress.Confirmed, v.Progress.Nodes, v.Progress.Waived)
	}
	if v.SetVersion == 0 {
		return "- (the set is not published yet)"
	}
	return fmt.Sprintf("set %d by %d of %d nodes, %d waived", v.SetVersion, v.Progress.Confirmed, v.Progress.Nodes, v.Progress.Waived)
}

// publishedText is what the phases of a rotation publish.
func publishedText(k rotation.Kind) string {
	if k == rotation.NodeCA {
		return "the CAs"
	}
	return "the set"
}

// replicasText describes the replicas of the API that have not read the CAs, which each does
// when they change, and once a minute.
func replicasText(p rotation.Progress) string {
	if p.Replicas == 0 {
		return "a replica of the API that reports its CAs"
	}
	return fmt.Sprintf("%d of %d replicas of the API, which read the CAs when they change, and once a minute", p.Replicas-p.Reloaded, p.Replicas)
}

// blockersText describes why the rotation stays in its phase.
func blockersText(v rotation.View) string {
	var all []string
	for _, b := range v.Blockers {
		switch b {
		case rotation.BlockedPaused:
			all = append(all, "resume (paused)")
		case rotation.BlockedSet:
			all = append(all, publishedText(v.Kind)+" of this phase, which a worker with the rotator's login publishes in seconds")
		case rotation.BlockedReload:
			all = append(all, replicasText(v.Progress))
		case rotation.BlockedNodes:
			all = append(all, text.Count(v.Progress.Nodes-v.Progress.Confirmed-v.Progress.Waived, "node"))
		case rotation.BlockedTasks:
			all = append(all, fmt.Sprintf("%d open tasks of the replaced key", v.Progress.OpenTasks))
		case rotation.BlockedGrace:
			all = append(all, "the end of the grace period of "+lifecycle.Span(v.Grace()))
		case rotation.BlockedApproval:
			all = append(all, "gpuaas rotate approve --reason TEXT")
		case rotation.BlockedWorker:
			all = append(all, "a worker with the rotator's login, and gpuaas rotate resume --reason TEXT (last checked "+v.CheckedAt.UTC().Format(time.RFC3339)+")")
		}
	}
	return strings.Join(all, ", ")
}
