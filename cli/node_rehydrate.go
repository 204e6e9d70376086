package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeRehydrate(e *env) *cobra.Command {
	var reason string
	var c *cobra.Command
	c = e.command("rehydrate NODE", "Accept the end of a node's abandoned operations",
		`Records the node's abandoned operations as failed. An operation is abandoned if its
workflow run ended in Temporal without recording an outcome: it was terminated, failed,
timed out, or does not exist. Nothing continues such an operation, and its tasks are void.

If no action can start in the node's state, the node returns to its state before the
operation, and every action that starts in that state is possible again. Nothing changes
on the node itself: a cordon stays until gpuaas node uncordon NODE.

The runs are read from Temporal at once, without waiting for the run watcher. An operation
whose run is open is not changed: the command is rejected (operation_in_progress), and
gpuaas op cancel NODE ends the operation. Without an abandoned operation nothing changes.`,
		"  gpuaas node rehydrate gpu-17\n  gpuaas node rehydrate gpu-17 --reason \"terminated by mistake\" -o json",
		func(ctx context.Context, arg string) error {
			if err := checkReason(c.CommandPath(), reason, false); err != nil {
				return err
			}
			done, err := decode[lifecycle.Rehydration](e.api().RehydrateNode(ctx, arg, nil, adminclient.RehydrateRequest{Reason: given(reason)}))
			if err != nil {
				return err
			}
			return e.print(done, func(w io.Writer) { writeRehydration(w, done) }, done.Node.Host)
		})
	c.Flags().StringVar(&reason, "reason", "", "reason, kept in the audit trail")
	return c
}

func writeRehydration(w io.Writer, done lifecycle.Rehydration) {
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
