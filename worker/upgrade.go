package worker

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/workflows"
)

// Replay replays histories of a namespace with the workflows of this program: see
// temporal.Replays. It changes nothing.
func Replay(ctx context.Context, c temporal.Config, o temporal.ReplayOptions) (temporal.ReplayReport, error) {
	t, err := temporal.Dial(c)
	if err != nil {
		return temporal.ReplayReport{}, err
	}
	defer t.Close()
	registered := map[string]any{}
	for _, e := range workflows.Registry() {
		registered[e.Type] = e.Run
	}
	report, err := t.Replays.Replay(ctx, registered, o)
	report.Build = BuildID()
	return report, err
}

// Promote makes a version of the worker current, temporal.Unversioned for workers
// without versioning, and returns the one that was current before.
func Promote(ctx context.Context, c temporal.Config, build string) (before string, err error) {
	t, err := temporal.Dial(c)
	if err != nil {
		return "", err
	}
	defer t.Close()
	return t.Deployments.Promote(ctx, build)
}
