package postgres

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func TestPoolSize(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, func(context.Context, string) error { return nil })
	bounded := url + "&pool_max_conns=3"
	for name, tc := range map[string]struct {
		url  string
		max  int32
		want int
	}{
		"default":     {url, 0, defaultMaxConns},
		"of the URL":  {bounded, 0, 3},
		"of a config": {url, 7, 7},
		"of both":     {bounded, 7, 7},
	} {
		db, err := Open(t.Context(), Config{URL: tc.url, MaxConns: tc.max})
		require.NoError(t, err, name)
		require.Equal(t, tc.want, db.Size(), name)
		db.Close()
	}

	// A listener has a connection of its own, to which the parameter means nothing.
	connected := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	l := newListener(t, bounded, connected)
	go func() { ended <- l.Run(ctx) }()
	harness.Receive(t, "the listener connects", connected)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
