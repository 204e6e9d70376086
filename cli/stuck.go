package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newStuck(e *env) *cobra.Command {
	var watch, exitCode bool
	c := e.command("stuck", "List operations that need attention",
		`Lists every parked, abandoned or overdue operation, oldest first: why and for how long it
has needed attention, who must act, and the least harmful command that resolves it. Faults
of the control plane, for example a reclaimer that does not run, are reported as warnings.

The exit code is 0. With --exit-code it is 5 if there is an operation or a fault.`,
		"  gpuaas stuck\n  gpuaas stuck --watch\n  gpuaas stuck --exit-code -o json | jq -r '.stuck[].stuck.next'",
		func(ctx context.Context, _ string) error {
			ctl, err := e.control()
			if err != nil {
				return err
			}
			var list wire.StuckList
			err = e.refresh(ctx, ctl, watch, func() error {
				now, err := ctl.stuck(ctx)
				if err != nil {
					return err
				}
				list = now
				e.clearScreen(watch)
				return e.printStuck(list)
			})
			if err == nil && exitCode && !watch && len(list.Stuck)+len(list.Faults) > 0 {
				return &exitError{schema.ExitPending, nil}
			}
			return err
		})
	directly(c)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "refresh at each change until interrupted")
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with code 5 when something needs attention")
	return c
}

func (e *console) printStuck(list wire.StuckList) error {
	for _, f := range list.Faults {
		e.message("warning: %s", f.Message)
		if f.Next != "" {
			e.message("next:  %s", f.Next)
		}
	}
	now := e.clock.now()
	return printList(e, listing[wire.StuckOperation]{
		object: list, rows: list.Stuck, empty: "nothing is stuck",
		header: []string{"NODE", "ACTION", "PHASE", "WAITING ON", "SINCE", "WHY", "NEXT", "ID"}, wide: 1,
		cells: func(o wire.StuckOperation) []string {
			s := cmp.Or(o.Stuck, &lifecycle.Stuck{Since: o.StartedAt})
			t := target{id: o.NodeID, host: o.Host}
			return []string{t.name(), string(o.Action), dash(cmp.Or(s.Phase, o.Phase)), string(o.WaitingOn), lifecycle.Span(now.Sub(s.Since)),
				dash(cmp.Or(s.Message, s.Reason)), nextCommand(t, o.Action, o.Stuck), o.OperationID}
		},
		name: func(o wire.StuckOperation) string { return o.OperationID },
	})
}
