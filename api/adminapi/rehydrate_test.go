package adminapi_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func (d *backend) Rehydrate(_ context.Context, nodeID, reason string, by audit.Subject) (lifecycle.Rehydration, error) {
	d.decided = []any{nodeID, reason, by.Actor}
	return lifecycle.Rehydration{Node: lifecycle.NodeRef{NodeID: nodeID, State: lifecycle.NodeActive}, From: lifecycle.NodeDraining,
		Ended: []lifecycle.EndedOperation{}}, d.decision
}

func TestRehydrate(t *testing.T) {
	d := newBackend()
	path := "/nodes/" + d.node.ID + "/rehydrate"
	for _, body := range []string{"", `{"reason":"terminated by mistake"}`} {
		w := d.request(t, http.MethodPost, path, body, wire.HeaderIdempotencyKey, "k")
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		assert.Contains(t, w.Body.String(), `"ended":[]`)
	}
	assert.Equal(t, []any{d.node.ID, "terminated by mistake", "ops"}, d.decided)
	d.decided = nil
	for body, reason := range map[string]string{`{"reason":"TEXT"}`: "bad_reason", `{"reason":"a\nb"}`: "bad_reason", `{"operation":"x"}`: "malformed_body"} {
		assert.Equal(t, reason, refusal(t, d.request(t, http.MethodPost, path, body)).Reason, body)
	}
	assert.Nil(t, d.decided)
	d.decision = schema.NewError(schema.KindOperationInProgress, "the run is open")
	assert.Equal(t, http.StatusConflict, d.request(t, http.MethodPost, path, "").Code)
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodPost, "/nodes/"+schema.NewID()+"/rehydrate", "").Code)
}
