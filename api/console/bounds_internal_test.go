package console

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// anySession is a store that has each session.
type anySession struct{ Sessions }

// FindSession implements Sessions.
func (anySession) FindSession(_ context.Context, id sessionID, _ bool) (Session, error) {
	return Session{ID: id}, nil
}

// What the console keeps of requests is bounded, whatever clients send.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	cfg := Config{Now: now, Sessions: anySession{}, Tokens: func([32]byte) (Subject, bool) { return Subject{Role: trust.RoleViewer}, true }}
	rendered, logins, sessions := newRegions(now), newAttempts(now), &sessions{cfg: cfg, known: map[sessionID]knownSession{}}
	kept := newReads(cfg, func() string { return "" })
	for i := range 2 * maxKnown {
		rendered.keep(fmt.Sprint(i), nil)
		logins.limiter(&http.Request{RemoteAddr: fmt.Sprintf("address-%d:1", i)})
		var id sessionID
		binary.BigEndian.PutUint64(id[:], uint64(i))
		_, err := sessions.find(t.Context(), id, true)
		require.NoError(t, err)
	}
	for i := range 2 * maxReads { // each looks at those that are kept
		require.NoError(t, kept.read(t.Context(), fmt.Sprint(i), func(context.Context, string) ([]byte, error) { return []byte{}, nil }))
	}
	require.LessOrEqual(t, len(rendered.kept), maxRegions)
	require.LessOrEqual(t, len(logins.of), maxAddresses)
	require.LessOrEqual(t, len(sessions.known), maxKnown)
	require.LessOrEqual(t, len(kept.kept), maxReads)
}
