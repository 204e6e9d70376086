package adminapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The process dies after an effect and before it keeps the result of the key. The
// client repeats the request.
func TestRepeatAfterTheProcessDied(t *testing.T) {
	const body = `{"host":"gpu-1","sku":"h100","region_code":"r1"}`
	post := func(d *backend, path, body string) (int, string) {
		w := d.request(t, http.MethodPost, path, body, wire.HeaderIdempotencyKey, "k")
		return w.Code, w.Body.String()
	}

	t.Run("register", func(t *testing.T) {
		d := newBackend()
		d.node.SKU = "h100"
		d.keys = map[string]string{"/api/v1/admin/nodes k": ""}
		d.registerErr = schema.NewError(schema.KindInvalidRequest, "taken").WithReason("host_taken")
		code, text := post(d, "/nodes", body)
		require.Equal(t, http.StatusCreated, code, text)
		assert.Contains(t, text, d.node.ID)
		assert.Equal(t, d.node.ID, d.keys["/api/v1/admin/nodes k"], "the result is kept now")

		d.keys, d.node.SKU = map[string]string{"/api/v1/admin/nodes k": ""}, "other"
		code, text = post(d, "/nodes", body)
		assert.Equal(t, http.StatusBadRequest, code, "another node has the host name")
		assert.Contains(t, text, "host_taken")
		d.keys, d.node.SKU = nil, "h100"
		code, _ = post(d, "/nodes", body)
		assert.Equal(t, http.StatusBadRequest, code, "the key is new")
	})

	t.Run("decision", func(t *testing.T) {
		d := parked()
		path := "/operations/" + d.status.Operation.OperationID + "/retry"
		d.keys = map[string]string{"/api/v1/admin" + path + " k": ""}
		code, text := post(d, path, `{"reason":"x"}`)
		require.Equal(t, http.StatusOK, code, text)
		d.keys = nil
		code, text = post(d, path, `{"reason":"x"}`)
		require.Equal(t, http.StatusOK, code, text)
		require.Len(t, d.resolved, 2)
		assert.Equal(t, d.resolved[0].ID, d.resolved[1].ID, "Temporal delivers the decision once")
		assert.Equal(t, lifecycle.DecisionID(d.status.Operation.OperationID, lifecycle.DecisionRetry, "k"), d.resolved[0].ID)

		// With the result kept, the repeat is answered even after the operation ended.
		d.status.Operation.Status = lifecycle.OperationCompleted
		code, text = post(d, path, `{"reason":"x"}`)
		require.Equal(t, http.StatusOK, code, text)
		assert.Len(t, d.resolved, 2)
	})

	t.Run("task", func(t *testing.T) {
		d := newBackend()
		d.task = wire.TaskView{TaskID: schema.NewID(), Status: task.Pending}
		d.decision = schema.NewError(schema.KindTaskStatus, "the task is not lost")
		path := "/tasks/" + d.task.TaskID + "/resume"
		d.keys = map[string]string{"/api/v1/admin" + path + " k": ""}
		code, text := post(d, path, `{"reason":"x"}`)
		require.Equal(t, http.StatusOK, code, text)
		d.keys = nil
		code, _ = post(d, path, `{"reason":"x"}`)
		assert.Equal(t, http.StatusConflict, code, "the key is new")
	})
}
