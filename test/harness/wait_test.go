package harness_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
)

// recorder is a test that fails without ending the real one.
type recorder struct {
	testing.TB

	errors []string
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.errors = append(r.errors, "error") }
func (r *recorder) FailNow()              { panic(r) }

// A requirement that fails in a polled condition ends the test at once.
func TestPollEndsWithItsCondition(t *testing.T) {
	r, calls := &recorder{TB: t}, 0
	require.PanicsWithValue(t, r, func() {
		harness.Poll(r, func() bool { calls++; require.Equal(r, 1, 2); return false }, time.Hour, time.Hour, "never")
	})
	require.Equal(t, 1, calls)
	require.Len(t, r.errors, 1)
}

// A condition that does not hold in time fails the test, and one that holds ends the wait.
func TestPollTimeout(t *testing.T) {
	r, calls := &recorder{TB: t}, 0
	require.PanicsWithValue(t, r, func() {
		harness.Poll(r, func() bool { calls++; return false }, 5*time.Millisecond, time.Millisecond, "never")
	})
	require.Greater(t, calls, 1)
	require.Len(t, r.errors, 1)
	harness.Poll(t, func() bool { calls = 0; return true }, time.Millisecond, time.Hour, "at once")
	require.Zero(t, calls)
}
