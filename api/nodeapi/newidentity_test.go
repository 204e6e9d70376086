package nodeapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// The token of a task goes to the node of the certificate, lives for minutes and is stored as a
// hash. Without a certificate there is none.
func TestIdentityToken(t *testing.T) {
	t.Parallel()
	store := &fakeStore{}
	s := newSite(t, store)
	taskID := schema.NewID()
	var stored trust.MintedToken
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	store.issueForTask = func(c nodeapi.Caller, id string, m trust.MintedToken, life time.Duration) (time.Time, error) {
		require.Equal(t, s.node.NodeID, c.NodeID)
		require.Equal(t, taskID, id)
		require.Equal(t, 15*time.Minute, life)
		stored = m
		return expires, nil
	}
	path := s.path("/tasks/" + taskID + "/identity-token")
	var answer trust.IdentityToken
	a := call(t, s.client(s.cert()), http.MethodPost, path, nil)
	require.Equal(t, http.StatusOK, a.status)
	require.NoError(t, json.Unmarshal(a.body, &answer))
	id, hash, err := trust.ParseToken(answer.Token)
	require.NoError(t, err)
	require.Equal(t, trust.MintedToken{NodeID: s.node.NodeID, TokenID: id, Hash: hash, Purpose: trust.PurposeReissue}, stored)
	require.Equal(t, expires, answer.ExpiresAt)
	require.NotContains(t, s.log.String(), answer.Token)
}
