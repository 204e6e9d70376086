package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

type opWatchOptions struct {
	timeout time.Duration
	reissue bool
}

// watchForEver bounds a watch without --timeout.
const watchForEver = 365 * 24 * time.Hour

func newOpWatch(e *env) *cobra.Command {
	var o opWatchOptions
	c := &cobra.Command{
		Use: "watch NODE", Short: "Follow a node's operation until it ends",
		Long: `Follows a node's operation until it ends, also while it is parked and somebody
decides. The exit code is the operation's. Ctrl-C stops only the watching.
--reissue follows the node's reissue-enrollment, which runs beside.`,
		Example: "  gpuaas op watch gpu-17\n  gpuaas op watch gpu-17 --timeout 10m -o json",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runOpWatch(c.Context(), e, args[0], o) },
	}
	c.Flags().DurationVar(&o.timeout, "timeout", 0, "how long to watch (default: until the operation ends)")
	addReissue(c, &o.reissue)
	return c
}

func runOpWatch(ctx context.Context, e *env, arg string, o opWatchOptions) error {
	t, err := e.find(ctx, arg)
	if err != nil {
		return err
	}
	st, _, err := e.current(ctx, t, "watch", o.reissue)
	if err != nil {
		return err
	}
	if o.timeout == 0 {
		o.timeout = watchForEver
	}
	r := followRequest{target: t, operation: st.Operation, limit: o.timeout, throughParks: true}
	if lc, err := e.lifecycle(ctx); err == nil {
		r.temporal = lc
	}
	st, err = e.follow(ctx, r)
	return e.finish(ctx, t, st, err)
}
