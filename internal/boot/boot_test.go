package boot_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/boot"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// issued records the calls of an issuer in their order.
type issued struct {
	calls   []string
	fail    map[string]error
	expires time.Time
	token   trust.MintedToken
	fence   activities.Fence
	hold    time.Duration
}

func (s *issued) call(name string) error {
	s.calls = append(s.calls, name)
	return s.fail[name]
}

func (s *issued) TokenExpiry(context.Context) (time.Time, error) {
	return s.expires, s.call("expiry")
}

func (s *issued) IssueBoot(_ context.Context, t trust.MintedToken, f activities.Fence, hold time.Duration) error {
	s.token, s.fence, s.hold = t, f, hold
	return s.call("issue")
}

func (s *issued) issuer() boot.Issuer {
	return boot.Issuer{Tokens: s, NodeURL: "https://node-api.test:8443", CA: func(context.Context) (string, error) { return ca, s.call("ca") }}
}

const ca = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

// TestNewBoot: the reference is issued last, for the node and in the name of the operation. It
// expires when the database says.
func TestNewBoot(t *testing.T) {
	t.Parallel()
	s := &issued{expires: time.Date(2040, 1, 2, 3, 4, 5, 0, time.UTC)}
	f := activities.Fence{NodeID: "n-1", OperationID: "op-1", OpSeq: 7, Actor: "alice@ops", Via: "cli", CorrelationID: "c-1"}
	b, err := s.issuer().NewBoot(t.Context(), f)
	require.NoError(t, err)
	require.Equal(t, []string{"ca", "expiry", "issue"}, s.calls)
	require.Equal(t, f, s.fence)
	require.Equal(t, activities.ProviderTimeout, s.hold)
	id, hash, err := trust.ParseToken(b.Reference)
	require.NoError(t, err)
	require.Equal(t, trust.MintedToken{NodeID: "n-1", TokenID: id, Hash: hash, Purpose: trust.PurposeEnroll, ExpiresAt: s.expires}, s.token)
	require.Equal(t, ca, b.CABundlePEM)
	require.Equal(t, "https://node-api.test:8443", b.BaseURL)
	require.Contains(t, string(b.UserData), b.Reference)
	again, err := s.issuer().NewBoot(t.Context(), f)
	require.NoError(t, err)
	require.NotEqual(t, b.Reference, again.Reference)
}

// TestNewBootFails: without a CA or an expiry no reference is issued, and no error returns one.
func TestNewBootFails(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string][]string{"ca": {"ca"}, "expiry": {"ca", "expiry"}, "issue": {"ca", "expiry", "issue"}} {
		down := errors.New("down")
		s := &issued{fail: map[string]error{name: down}}
		b, err := s.issuer().NewBoot(t.Context(), activities.Fence{NodeID: "n-1"})
		require.ErrorIs(t, err, down)
		require.Equal(t, calls, s.calls)
		require.Equal(t, activities.Boot{}, b)
	}
}
