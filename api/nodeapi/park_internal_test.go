package nodeapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// noSets has no verifier set.
type noSets struct{ VerifierSets }

func (noSets) NewestSet(context.Context) (trust.StoredSet, error) {
	return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "none")
}

// A new verifier set ends a poll within setSpread and never later than without the set. The poll
// looks once: the channel is closed, so that it would look again without end.
func TestNewSetShortensPoll(t *testing.T) {
	for name, wait := range map[string]time.Duration{"a long poll": time.Hour, "one that ends": time.Nanosecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &poller{cfg: &Config{VerifierSets: noSets{}}}
				looks := make(chan struct{}, 2) // stands for the closed channel
				looks <- struct{}{}
				looks <- struct{}{}
				end := time.NewTimer(wait)
				defer end.Stop()
				p := &openPoll{until: time.Now().Add(wait), replaced: looks}
				latest := earlier(p.until, time.Now().Add(setSpread))
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
				done, err := a.park(httptest.NewRecorder(), r, p, end, nil)
				require.NoError(t, err)
				require.True(t, done)
				require.Len(t, looks, 1)
				require.False(t, time.Now().After(latest))
			})
		})
	}
}
