package e2e

import (
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestIdempotencyKeysByHTTP repeats starts of operations with the key of an earlier
// request, during and after the operation, after a later operation, and at the same
// time.
func TestIdempotencyKeysByHTTP(t *testing.T) {
	nodeHost, _ := enrolled(t, "keys")
	const cordon = `{"reason":"RMA-4411","options":{"cordon_only":true}}`
	start := func(action, body, key string) reply {
		return adminHTTP(t, http.MethodPost, "/api/v1/admin/nodes/"+nodeHost+"/"+action, body, wire.HeaderIdempotencyKey, key)
	}
	completed := func(r reply) {
		var started wire.LifecycleResponse
		r.into(t, http.StatusAccepted, &started)
		blockedDrain{started.Node.ID, r.location}.ends(t, lifecycle.OperationCompleted)
	}
	first := start("drain", cordon, "k")
	completed(first)
	uncordon := start("uncordon", "", "k")
	completed(uncordon)
	require.NotEqual(t, first.location, uncordon.location)

	var again wire.LifecycleResponse
	repeated := start("drain", cordon, "k")
	repeated.into(t, http.StatusAccepted, &again)
	require.Equal(t, first.location, repeated.location)
	require.Equal(t, lifecycle.OperationCompleted, again.Operation.Status)
	require.Equal(t, lifecycle.Options{CordonOnly: true}, again.Operation.Options)
	for _, body := range []string{"", `{"reason":"RMA-4411"}`, `{"reason":"RMA-4412","options":{"cordon_only":true}}`} {
		assert.Equal(t, schema.KindKeyInUse, start("drain", body, "k").refusal(t, http.StatusConflict).Code, body)
	}

	var replies [4]reply
	var group sync.WaitGroup
	for i := range replies {
		group.Go(func() { replies[i] = start("drain", cordon, "k2") })
	}
	group.Wait()
	for _, r := range replies {
		completed(r)
		require.Equal(t, replies[0].location, r.location)
	}
	var drains wire.OperationList
	adminHTTP(t, http.MethodGet, "/api/v1/admin/operations?action=drain&node="+nodeHost, "").into(t, http.StatusOK, &drains)
	require.Len(t, drains.Operations, 2)
}
