package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const taskID = "0190b6c2-4444-7aaa-8bbb-0123456789ab"

// The park of a lost task offers to resume it, and the button leads to a form that does.
func TestResumeTask(t *testing.T) {
	s := newSite(t)
	view := operation()
	view.Operation.Stuck.Options = append([]lifecycle.Option{lifecycle.ResumeTask(taskID)}, view.Operation.Stuck.Options...)
	s.backend.answer("GET "+operationPath, view)
	lost := wire.TaskView{TaskID: taskID, Host: "gpu-17", Type: "gpu.reset", Status: task.Lost, OperationID: operationID}
	s.backend.answer("GET /tasks/"+taskID, lost)
	s.backend.answer("POST /tasks/"+taskID+"/resume", lost)
	s.login(trust.RoleOperator)
	link := regexp.MustCompile(`href="(/console/tasks/[^"]*)"`).FindStringSubmatch(s.get("/console" + operationPath).Body.String())
	require.NotNil(t, link)
	form := s.get(link[1])
	require.Equal(t, http.StatusOK, form.Code)
	require.Contains(t, form.Body.String(), "gpuaas task resume "+taskID)
	require.Empty(t, s.backend.sent(http.MethodPost), "a GET changes nothing")

	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, link[1], url.Values{"key": {"k"}}).Code, "without a reason")
	w := s.do(http.MethodPost, link[1], url.Values{"key": {"k"}, "reason": {"inspected, TCK-7"}})
	require.Equal(t, []any{http.StatusSeeOther, "/console" + operationPath}, []any{w.Code, w.Header().Get("Location")})
	sent := s.backend.sent(http.MethodPost)
	require.Len(t, sent, 1)
	require.JSONEq(t, `{"reason": "inspected, TCK-7"}`, sent[0].body)
	require.Equal(t, []string{"k", "operator-1"}, []string{sent[0].key, sent[0].by.Name})

	lost.Status = task.Running
	s.backend.answer("GET /tasks/"+taskID, lost)
	require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, link[1], url.Values{"key": {"k"}, "reason": {"inspected, TCK-7"}}).Code, "a second click")
	s.backend.answer("POST /tasks/"+taskID+"/resume", schema.NewError(schema.KindTaskStatus, "the task is running"))
	for _, w := range []int{s.get(link[1]).Code, s.do(http.MethodPost, link[1], url.Values{"key": {"k2"}, "reason": {"r"}}).Code} {
		require.Equal(t, http.StatusConflict, w, "the task is not lost any longer")
	}
}
