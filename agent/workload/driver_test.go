package workload

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changes, n := 0, 0
		answers := [][]task.Workload{nil, nil, {{Name: "a"}}, {{Name: "a"}}, nil, {{Name: "a", Stopping: true}}}
		p := watcher{changed: func() { changes++ }, log: slog.New(slog.DiscardHandler)}
		p.watch(ctx, func(context.Context) ([]task.Workload, error) {
			n++
			if n == len(answers) {
				cancel()
			}
			if n == 5 {
				return nil, errors.New("busy")
			}
			return answers[n-1], nil
		})
		require.Equal(t, 1, changes, "an error is no change")
		require.Equal(t, len(answers), n)
	})
}
