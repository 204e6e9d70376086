package nodeapi_test

import (
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Every endpoint of a node sends the signed removal with node_removed, and only with it.
// Without a document, or without the store, the error stays as it is.
func TestRemovalIsSent(t *testing.T) {
	document := []byte(`{"payload":"x"}`)
	var unread error
	reason, signed, asked := schema.ReasonNodeRemoved, document, 0
	var node string
	s := newSite(t, &fakeStore{
		authenticate: func(trust.Identity, trust.CertFacts) (nodeapi.Caller, error) {
			return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "no").WithReason(reason)
		},
		removal: func(nodeID string) ([]byte, error) { asked++; node = nodeID; return signed, unread },
	})
	c := s.client(s.cert())
	for _, e := range endpoints() {
		a := call(t, c, e.method, s.path(e.path), e.body)
		require.Equal(t, http.StatusUnauthorized, a.status)
		require.Equal(t, schema.ReasonNodeRemoved, a.refusal(t).Reason)
		got, err := base64.RawURLEncoding.DecodeString(a.header.Get(wire.HeaderRemoval))
		require.NoError(t, err)
		require.Equal(t, document, got, e.path)
		require.Equal(t, s.node.NodeID, node)
	}
	signed = nil
	require.Empty(t, call(t, c, http.MethodGet, s.path("/tasks/wait"), nil).header.Get(wire.HeaderRemoval))
	unread = schema.NewError(schema.KindServiceUnavailable, "away")
	a := call(t, c, http.MethodGet, s.path("/tasks/wait"), nil)
	require.Empty(t, a.header.Get(wire.HeaderRemoval))
	require.Equal(t, schema.ReasonNodeRemoved, a.refusal(t).Reason)

	reason, signed, unread, asked = schema.ReasonNodeLocked, document, nil, 0
	require.Empty(t, call(t, c, http.MethodGet, s.path("/tasks/wait"), nil).header.Get(wire.HeaderRemoval))
	require.Zero(t, asked)
}
