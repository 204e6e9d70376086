package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

type opWatchOptions struct {
	timeout time.Duration
	operationArg
}

// watchLimit bounds a watch without --timeout.
const watchLimit = 365 * 24 * time.Hour

func newOpWatch(e *env) *cobra.Command {
	var o opWatchOptions
	c := &cobra.Command{
		Use: "watch {NODE | OPERATION}", Short: "Follow an operation until it ends",
		Long: `Follows an operation until it ends, also while it is parked. The exit code is the
operation's. Ctrl-C stops the watch, not the operation.`,
		Example: "  gpuaas op watch gpu-17\n  gpuaas op watch gpu-17 --timeout 10m -o json",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runOpWatch(c.Context(), e, args[0], o) },
	}
	c.Flags().DurationVar(&o.timeout, "timeout", 0, "how long to watch (default: until the operation ends)")
	addOperation(c, &o.operationArg)
	return c
}

func runOpWatch(ctx context.Context, e *env, arg string, o opWatchOptions) error {
	ctl, err := e.control(ctx)
	if err != nil {
		return err
	}
	t, st, err := locate(ctx, ctl, arg, o.operationArg)
	if err != nil {
		return t.noOperation(ctx, ctl, "watch", err, o.reissue)
	}
	if o.timeout == 0 {
		o.timeout = watchLimit
	}
	st, err = e.follow(ctx, followRequest{target: t, operation: st.Operation, control: ctl, limit: o.timeout, throughParks: true})
	return e.finish(ctx, t, st, err)
}
