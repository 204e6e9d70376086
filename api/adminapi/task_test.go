package adminapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func (d *backend) request(t *testing.T, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1/admin"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set(wire.HeaderCorrelationID, "c-1")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	d.api().Handler().ServeHTTP(w, r)
	return w
}

func refusal(t *testing.T, w *httptest.ResponseRecorder) schema.ErrorDetail {
	t.Helper()
	var b schema.ErrorBody
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &b), w.Body.String())
	require.NotEmpty(t, b.Error.Next, "every error has a next step: %s", w.Body.String())
	return b.Error
}

func TestTasks(t *testing.T) {
	d := newBackend()
	w := d.request(t, http.MethodGet, "/tasks", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.JSONEq(t, `{"tasks":[]}`, w.Body.String())
	assert.Equal(t, []any{"", true}, d.listed)
	d.task = wire.TaskView{TaskID: schema.NewID(), Status: task.Lost, Result: &task.Result{OutputTail: "end"}}
	w = d.request(t, http.MethodGet, "/tasks?node=gpu-1&all=true", "")
	assert.Equal(t, []any{d.node.ID, false}, d.listed)
	var list wire.TaskList
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	assert.Equal(t, d.task.TaskID, list.Tasks[0].TaskID)

	w = d.request(t, http.MethodGet, "/tasks/"+d.task.TaskID, "")
	require.Equal(t, http.StatusOK, w.Code)
	var one wire.TaskView
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &one))
	assert.Equal(t, "end", one.Result.OutputTail)

	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodGet, "/tasks/"+schema.NewID(), "").Code)
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodGet, "/tasks/7", "").Code)
	assert.Equal(t, "bad_all", refusal(t, d.request(t, http.MethodGet, "/tasks?all=perhaps", "")).Reason)
}

func TestTaskDecisions(t *testing.T) {
	for _, verb := range []string{"resume", "cancel"} {
		d := newBackend()
		d.task = wire.TaskView{TaskID: schema.NewID(), Status: task.Pending}
		path := "/tasks/" + d.task.TaskID + "/" + verb
		w := d.request(t, http.MethodPost, path, `{"reason":"RMA-4411"}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		assert.Equal(t, []any{verb, d.task.TaskID, "RMA-4411", audit.Subject{Actor: "ops", Via: "api", CorrelationID: "c-1"}}, d.decided)

		d.decided = nil
		for body, reason := range map[string]string{
			"": "malformed_body", "{}": "bad_reason", `{"reason":" "}`: "bad_reason", `{"reason":"a\nb"}`: "bad_reason",
			`{"reason":"` + strings.Repeat("x", 501) + `"}`: "bad_reason", `{"reason":"x","by":"me"}`: "malformed_body",
		} {
			assert.Equal(t, reason, refusal(t, d.request(t, http.MethodPost, path, body)).Reason, body)
		}
		assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodPost, "/tasks/7/"+verb, `{"reason":"x"}`).Code)
		assert.Nil(t, d.decided)
		d.decision = schema.NewError(schema.KindNotFound, "no task")
		assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodPost, path, `{"reason":"x"}`).Code)
	}
}

// A status that does not allow the decision is a 409 that says what it allows.
func TestTaskDecisionsRefused(t *testing.T) {
	for status, allowed := range map[task.Status]string{
		task.Pending: "allowed now: cancel", task.Running: "allowed now: cancel",
		task.Lost: "allowed now: resume, cancel", task.Succeeded: "allowed now: none, the task ended",
	} {
		d := newBackend()
		d.task = wire.TaskView{TaskID: schema.NewID(), Status: status}
		d.decision = schema.NewError(schema.KindTaskStatus, "task is %s", status).WithReason("task_not_lost")
		w := d.request(t, http.MethodPost, "/tasks/"+d.task.TaskID+"/resume", `{"reason":"x"}`)
		assert.Equal(t, http.StatusConflict, w.Code)
		e := refusal(t, w)
		assert.Equal(t, schema.KindTaskStatus, e.Code)
		assert.Equal(t, "task_not_lost", e.Reason)
		assert.Contains(t, e.Message, allowed)
	}
}

// A repeat with the same key succeeds if the decision was carried out, and is
// rejected in any other status and without a key.
func TestTaskDecisionsOnce(t *testing.T) {
	for verb, done := range map[string]task.Status{"resume": task.Pending, "cancel": task.Canceled} {
		d := newBackend()
		d.task = wire.TaskView{TaskID: schema.NewID(), Status: done}
		d.decision = schema.NewError(schema.KindTaskStatus, "too late")
		path := "/tasks/" + d.task.TaskID + "/" + verb
		w := d.request(t, http.MethodPost, path, `{"reason":"x"}`, wire.HeaderIdempotencyKey, "k")
		assert.Equal(t, http.StatusOK, w.Code, w.Body.String())
		assert.Contains(t, w.Body.String(), d.task.TaskID)
		assert.Equal(t, http.StatusConflict, d.request(t, http.MethodPost, path, `{"reason":"x"}`).Code)
		d.task.Status = task.Succeeded
		assert.Equal(t, http.StatusConflict, d.request(t, http.MethodPost, path, `{"reason":"x"}`, wire.HeaderIdempotencyKey, "k").Code)
	}
}
