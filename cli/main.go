package cli

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/temporal"
)

// Main runs one command line (without the program's name) and returns the exit
// code. The end of ctx is the operator's interrupt.
func Main(ctx context.Context, p Platform, args []string, stdio Stdio) int {
	if p.Dial == nil {
		p.Dial = dialTemporal
	}
	return run(ctx, newEnv(p, stdio), args)
}

func run(ctx context.Context, e *env, args []string) int {
	defer e.close()
	root := newRoot(e)
	root.SetArgs(args)
	return e.report(ctx, root.ExecuteContext(ctx))
}

func dialTemporal(ctx context.Context, o DialOptions) (Lifecycle, error) {
	c, err := temporal.Dial(ctx, temporal.Config{Address: o.Address, Namespace: o.Namespace, Secrets: o.Secrets})
	if err != nil {
		return nil, err
	}
	return c, nil
}
