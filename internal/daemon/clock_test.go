package daemon

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// twoClocks are the clocks of this machine and of a server. A read of the server's takes a
// time by this machine's clock.
type twoClocks struct {
	mu    sync.Mutex // of here, which concurrent comparisons use
	here  time.Time
	ahead time.Duration
	takes time.Duration
	down  error
}

func (c *twoClocks) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.here
}

func (c *twoClocks) read(context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.here = c.here.Add(c.takes / 2)
	theirs := c.here.Add(c.ahead)
	c.here = c.here.Add(c.takes - c.takes/2)
	return theirs, c.down
}

func compared(t *testing.T) (*Clocks, *twoClocks) {
	t.Helper()
	at := &twoClocks{here: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)}
	c := NewClocks(prometheus.NewRegistry())
	c.now = at.now
	c.Compare("postgres", "no task is dispatched", at.read)
	return c, at
}

func TestClocksThatDiffer(t *testing.T) {
	for _, test := range []struct {
		name         string
		ahead, takes time.Duration
		says         string // "" for no fault
	}{
		{"equal", 0, 0, ""},
		{"within the limit", 30 * time.Second, 0, ""},
		{"ahead", 31 * time.Second, 0, "the clock of postgres is 31s ahead of this machine's, more than the limit of 30s; no task is dispatched"},
		{"behind", -45 * time.Second, 0, "the clock of postgres is 45s behind this machine's, more than the limit of 30s; no task is dispatched"},
		{"a slow response proves nothing", 31 * time.Second, 2500 * time.Millisecond, ""},
		{"a slow response of a clock that is far off", time.Hour, 2500 * time.Millisecond, "1h0m0s ahead"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, at := compared(t)
			at.ahead, at.takes = test.ahead, test.takes
			err := c.Check(t.Context())
			require.Equal(t, err, c.Fault("postgres"))
			require.InDelta(t, test.ahead.Seconds(), testutil.ToFloat64(c.skew.WithLabelValues("postgres")), 0.001)
			if test.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.says)
			require.Equal(t, lifecycle.ReasonClockSkew, schema.AsError(err).Reason)
			require.Contains(t, schema.AsError(err).Next, "timedatectl")
		})
	}
}

// A clock that was never compared prevents the work that needs it: nothing shows that it is
// right. But it is no clock that differs, and its fault is that of the server. Later, a server
// that does not respond keeps what was known about its clock.
func TestClockOfASilentServer(t *testing.T) {
	c, at := compared(t)
	unknown := func(says, reason string) {
		t.Helper()
		err := c.Fault("postgres")
		require.ErrorContains(t, err, says)
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Equal(t, reason, schema.AsError(err).Reason)
		require.NoError(t, c.Skew())
	}
	unknown("the clock of postgres was not compared with this machine's yet; no task is dispatched", "")
	at.down = schema.NewError(schema.KindServiceUnavailable, "no route").WithReason("unreachable").WithNext("check the network")
	require.NoError(t, c.Check(t.Context()))
	unknown("the clock of postgres is not known: no route; no task is dispatched", "unreachable")
	require.Equal(t, "check the network", schema.AsError(c.Fault("postgres")).Next)
	require.Zero(t, testutil.CollectAndCount(c.skew), "a difference that is not known is not published")
	at.down = nil
	require.NoError(t, c.Check(t.Context()))
	at.down = errors.New("no route")
	require.NoError(t, c.Check(t.Context()))

	at.down, at.ahead = nil, time.Minute
	require.Error(t, c.Check(t.Context()))
	at.down = errors.New("no route")
	require.Error(t, c.Check(t.Context()))
	at.down, at.ahead = nil, time.Second
	require.NoError(t, c.Check(t.Context()))
}

// A fault names the server, so that work that needs another one continues.
func TestFaultNamesTheClock(t *testing.T) {
	c, at := compared(t)
	c.Compare("vault", "certificates may not be valid yet", func(context.Context) (time.Time, error) { return at.now().Add(time.Hour), nil })
	require.ErrorContains(t, c.Check(t.Context()), "the clock of vault is 1h0m0s ahead")
	require.NoError(t, c.Fault("postgres"))
	require.Error(t, c.Fault("vault"))
}

// A server that hangs holds a check no longer than a probe may take.
func TestClockCheckIsBounded(t *testing.T) {
	c := NewClocks(prometheus.NewRegistry())
	bounded := false
	c.Compare("vault", "", func(ctx context.Context) (time.Time, error) {
		_, bounded = ctx.Deadline()
		return time.Time{}, context.DeadlineExceeded
	})
	require.NoError(t, c.Check(t.Context()))
	require.Error(t, c.Fault("vault"))
	require.True(t, bounded)
}
