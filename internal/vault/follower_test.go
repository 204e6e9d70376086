package vault

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// fakes is a store and a signer with configurable errors.
type fakes struct {
	mu       sync.Mutex
	newest   trust.StoredSet
	readErr  error
	checkErr error
	checks   []int64
}

func (w *fakes) NewestSet(context.Context) (trust.StoredSet, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest, w.readErr
}

func (w *fakes) SetsAfter(context.Context, int64, int) ([]trust.StoredSet, error) { return nil, nil }

func (w *fakes) PutSet(context.Context, trust.StoredSet, audit.Subject) error { return nil }

func (w *fakes) follow(_ context.Context, s trust.StoredSet) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks = append(w.checks, s.Version)
	return w.checkErr
}

func (w *fakes) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *fakes) checked() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checks
}

func set(version int64) trust.StoredSet {
	return trust.StoredSet{Version: version, Hash: string(rune('a' + version))}
}

func follower(w *fakes) (*SetFollower, *[]bool) {
	observed := &[]bool{}
	return NewSetFollower(w, w.follow, slog.New(slog.DiscardHandler), func(ok bool) { *observed = append(*observed, ok) }), observed
}

// The signer checks a new set, an unchanged set once an hour, and every time after
// a failed check.
func TestFollowerChecks(t *testing.T) {
	t.Parallel()
	w := &fakes{newest: set(1)}
	f, observed := follower(w)
	now := time.Now()
	f.now = func() time.Time { return now }
	_, err := f.NewestSet(t.Context())
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.Error(t, f.Healthy())

	for range 3 {
		require.NoError(t, f.Refresh(t.Context()))
	}
	require.Equal(t, []int64{1}, w.checked())
	require.NoError(t, f.Healthy())
	now = now.Add(checkEvery)
	require.NoError(t, f.Refresh(t.Context()))
	require.Equal(t, []int64{1, 1}, w.checked(), "an hour later")
	w.newest = set(2)
	require.NoError(t, f.Refresh(t.Context()))
	require.Equal(t, []int64{1, 1, 2}, w.checked())

	w.newest = set(3)
	w.checkErr = schema.NewError(schema.KindInternal, "another key")
	require.ErrorIs(t, f.Refresh(t.Context()), w.checkErr)
	require.ErrorIs(t, f.Healthy(), w.checkErr)
	newest, err := f.NewestSet(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(3), newest.Version, "nodes verify it themselves")
	w.checkErr = nil
	require.NoError(t, f.Refresh(t.Context()))
	require.NoError(t, f.Healthy())
	require.Equal(t, []int64{1, 1, 2, 3, 3}, w.checked())
	require.Equal(t, []bool{true, true, true, false, true}, *observed)
}

// An unavailable database or Vault changes nothing, and the check is repeated.
func TestFollowerOutages(t *testing.T) {
	t.Parallel()
	w := &fakes{readErr: schema.NewError(schema.KindNotFound, "none")}
	f, observed := follower(w)
	require.ErrorIs(t, f.Refresh(t.Context()), w.readErr)
	require.Error(t, f.Healthy())
	w.readErr, w.newest = nil, set(1)
	w.checkErr = schema.NewError(schema.KindServiceUnavailable, "sealed")
	require.Error(t, f.Refresh(t.Context()))
	require.Error(t, f.Healthy(), "no check has completed")
	w.checkErr = nil
	require.NoError(t, f.Refresh(t.Context()))

	w.newest = set(2)
	w.checkErr = schema.NewError(schema.KindServiceUnavailable, "sealed")
	require.Error(t, f.Refresh(t.Context()))
	require.NoError(t, f.Healthy(), "the set before was good")
	require.Error(t, f.Refresh(t.Context()), "the check is repeated")
	w.checkErr = nil
	require.NoError(t, f.Refresh(t.Context()))
	require.NoError(t, f.Refresh(t.Context()))
	require.Equal(t, []int64{1, 1, 2, 2, 2}, w.checked())

	w.readErr = schema.NewError(schema.KindServiceUnavailable, "Postgres is unavailable")
	require.Error(t, f.Refresh(t.Context()))
	newest, err := f.NewestSet(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), newest.Version)
	require.NoError(t, f.Healthy())
	require.Equal(t, []bool{true, true}, *observed)
}

func TestRunRefreshesOnNotification(t *testing.T) {
	t.Parallel()
	w := &fakes{newest: set(1)}
	f, _ := follower(w)
	ctx, stop := context.WithCancel(t.Context())
	wake, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); assert.NoError(t, f.Run(ctx, wake)) }()
	wake <- struct{}{}
	w.change(func() { w.newest = set(2) })
	wake <- struct{}{} // taken after the first refresh
	wake <- struct{}{} // taken after the second
	stop()
	<-done
	newest, err := f.NewestSet(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), newest.Version)
}
