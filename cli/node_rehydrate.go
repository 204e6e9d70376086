package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

type nodeRehydrateOptions struct {
	manyOptions
	reason string
	yes    bool
}

func newNodeRehydrate(e *env) *cobra.Command {
	var o nodeRehydrateOptions
	bulk := bulkFlags{noun: "node", selectors: []string{"selector", "stuck-reason"}, many: []string{"dry-run", "max-parallel"}}
	var c *cobra.Command
	c = e.command("rehydrate {NODE | --selector SELECTOR}", "Accept the end of a node's abandoned operations",
		`Records the node's abandoned operations as failed. An operation is abandoned if its
workflow run ended in Temporal without recording an outcome: it was terminated, failed,
timed out, or does not exist. Nothing continues such an operation, and its tasks are void.

If no action can start in the node's state, the node returns to its state before the
operation, and every action that starts in that state is possible again. Nothing changes
on the node itself: a cordon stays until gpuaas node uncordon NODE.

The runs are read from Temporal at once, without waiting for the run watcher. An operation
whose run is open is not changed: the command is rejected (operation_in_progress), and
gpuaas op cancel NODE ends the operation. Without an abandoned operation nothing changes,
unless the node is draining, terminating or removing and no operation holds it, as after a
change of the database: it returns to its state before its last operation, or is
quarantined if none is on record. If its machine is gone, terminate or remove it again.

With --selector or --stuck-reason it rehydrates the node of every abandoned operation that
matches. The run watcher marks an operation up to two minutes after its run ended. The
command prints the operations and asks for confirmation first. If Temporal does not
have most runs (runs_missing in gpuaas stuck), the run watcher marks no operation as
run_lost. Then the command includes every open operation that is not marked, and an
operation whose run is open does not change. Run the same command again to continue after
an interrupt or a failure. The exit code is 1 if a node failed, and 5 if one was not tried.

`+selectorHelp,
		"  gpuaas node rehydrate gpu-17\n  gpuaas node rehydrate gpu-17 --reason \"terminated by mistake\" -o json\n"+
			"  gpuaas node rehydrate --stuck-reason run_lost --reason \"Temporal was restored\" --dry-run",
		func(ctx context.Context, arg string) error {
			if err := checkReason(c.CommandPath(), o.reason, false); err != nil {
				return err
			}
			if bulk.selected(c) {
				return runRehydrateMany(ctx, e, o)
			}
			done, err := decode[lifecycle.Rehydration](e.api().RehydrateNode(ctx, arg, nil, adminclient.RehydrateRequest{Reason: given(o.reason)}))
			if err != nil {
				return err
			}
			return e.print(done, func(w io.Writer) { writeRehydration(w, done) }, done.Node.Host)
		})
	c.Args = bulk.check
	f := c.Flags()
	f.StringVar(&o.reason, "reason", "", "reason, kept in the audit trail")
	f.FuncP("selector", "l", "rehydrate every node that matches `SELECTOR` and has an abandoned operation, for example rack=r7", optional(&o.selector))
	addFilter(c, &o.reasons, "stuck-reason", "rehydrate the nodes of operations that are abandoned for one of these `REASONS`", lifecycle.RunEnds()...)
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be rehydrated; change nothing")
	f.IntVar(&o.parallel, "max-parallel", decideParallel, "how many nodes to rehydrate at a time")
	addYes(c, &o.yes)
	return c
}

func writeRehydration(w io.Writer, done lifecycle.Rehydration) {
	for _, id := range done.Terminated {
		fmt.Fprintf(w, "%s: the left-over run of operation %s was terminated; no record changed\n", done.Node.Host, id)
	}
	if len(done.Ended) == 0 && done.From != done.Node.State {
		fmt.Fprintf(w, "%s: no operation held the node, which was %s; it is %s again\n", done.Node.Host, done.From, done.Node.State)
		writeCordon(w, done)
		return
	}
	if len(done.Ended) == 0 {
		fmt.Fprintf(w, "%s: no operation is abandoned; the node is %s\n", done.Node.Host, done.Node.State)
		writeCordon(w, done)
		return
	}
	for _, o := range done.Ended {
		fmt.Fprintln(w, clean(fmt.Sprintf("%s %s: %s (operation %s): %s", o.Action, done.Node.Host, lifecycle.OperationFailed, o.OperationID, o.Outcome)))
	}
	change := ""
	if done.From != done.Node.State {
		change = fmt.Sprintf(", before it was %s", done.From)
	}
	fmt.Fprintf(w, "the node is %s%s\n", done.Node.State, change)
	writeCordon(w, done)
}

func writeCordon(w io.Writer, done lifecycle.Rehydration) {
	if done.Cordoned {
		fmt.Fprintf(w, "the node is cordoned: it accepts no new workloads\n")
	}
	if done.Next != "" {
		fmt.Fprintf(w, "next:  %s\n", done.Next)
	}
}
