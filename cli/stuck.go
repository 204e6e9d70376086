package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuckEvery is how often a watched list is read at least.
const stuckEvery = 5 * time.Second

type stuckOptions struct {
	watch, exitCode bool
}

func newStuck(e *env) *cobra.Command {
	var o stuckOptions
	c := &cobra.Command{
		Use: "stuck", Short: "List operations that need attention",
		Long: `Lists every parked, overdue or abandoned operation, oldest first: why and since when
it needs attention, who must act, and the least harmful command that helps. Faults of
the control plane, for example a reclaimer that does not run, are reported as warnings.

The exit code is 0, and with --exit-code 5 when the list or the faults are not empty.`,
		Example: "  gpuaas stuck\n  gpuaas stuck --watch\n  gpuaas stuck --exit-code -o json | jq -r '.stuck[].stuck.next'",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runStuck(c.Context(), e, o) },
	}
	c.Flags().BoolVarP(&o.watch, "watch", "w", false, "refresh at each change until interrupted")
	c.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit with code 5 when something needs attention")
	return c
}

func runStuck(ctx context.Context, e *env, o stuckOptions) error {
	ctl, err := e.control(ctx)
	if err != nil {
		return err
	}
	var refresh *watcher
	for {
		list, err := ctl.stuck(ctx)
		if err == nil {
			err = e.printStuck(list, o.watch && e.tty.out)
		}
		switch {
		case o.watch && interrupted(ctx):
			return nil
		case err != nil:
			return err
		case !o.watch && o.exitCode && len(list.Stuck)+len(list.Faults) > 0:
			return &exitError{schema.ExitPending, nil}
		case !o.watch:
			return nil
		}
		if refresh == nil {
			refresh = &watcher{e.clock, ctl.changes(ctx, "")}
		}
		if !refresh.wait(ctx) {
			return nil
		}
	}
}

func interrupted(ctx context.Context) bool { return ctx.Err() != nil }

func (e *printer) printStuck(list wire.StuckList, clearScreen bool) error {
	if clearScreen {
		fmt.Fprint(e.stdout, "\x1b[H\x1b[2J")
	}
	for _, f := range list.Faults {
		e.say("warning: %s", f.Message)
		if f.Next != "" {
			e.say("next:  %s", f.Next)
		}
	}
	if len(list.Stuck) == 0 {
		e.say("nothing is stuck")
		if !e.machine() {
			return nil
		}
	}
	now := e.clock.now()
	return e.print(list, func(w io.Writer) {
		row(w, "NODE", "ACTION", "PHASE", "WAITING ON", "SINCE", "WHY", "NEXT")
		for _, o := range list.Stuck {
			s := o.Stuck
			if s == nil {
				s = &lifecycle.Stuck{Since: o.StartedAt}
			}
			t := target{id: o.NodeID, host: o.Host}
			row(w, t.name(), string(o.Action), dash(cmp.Or(s.Phase, o.Phase)), string(o.WaitingOn), span(now.Sub(s.Since)),
				dash(cmp.Or(s.Message, s.Reason)), nextCommand(t, lifecycle.Operation{Action: o.Action, Stuck: o.Stuck}))
		}
	})
}
