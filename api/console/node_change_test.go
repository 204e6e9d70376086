package console_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The page of a node offers the changes that its state needs.
func TestOfferedNodeChanges(t *testing.T) {
	t.Parallel()
	lock := func(reason string) func(*wire.NodeView) {
		return func(n *wire.NodeView) { n.IdentityLock = &trust.IdentityLock{Reason: reason, Since: readAt()} }
	}
	for name, c := range map[string]struct {
		change                  func(*wire.NodeView)
		lock, unlock, rehydrate bool
	}{
		"active":             {change: func(*wire.NodeView) {}, lock: true},
		"registered":         {change: func(n *wire.NodeView) { n.State = lifecycle.NodeRegistered }},
		"locked":             {change: lock(trust.LockedByOperator), unlock: true},
		"locked by a server": {change: lock(trust.LockedBySerial)},
		"alarm": {change: func(n *wire.NodeView) {
			n.IdentityAlarm = &trust.IdentityAlarm{Reason: trust.AlarmSession, Since: readAt()}
		}, lock: true, unlock: true},
		"abandoned": {change: func(n *wire.NodeView) {
			n.Operation = &wire.OperationSummary{OperationID: operationID, Status: lifecycle.OperationAbandoned, StartedAt: readAt().Add(-time.Hour)}
		}, lock: true, rehydrate: true},
	} {
		s := newSite(t)
		n := busy()
		c.change(&n)
		s.backend.node(n)
		page := s.login(trust.RoleAdmin).get("/console" + nodePath).Body.String()
		for change, offered := range map[string]bool{"lock": c.lock, "unlock": c.unlock, "rehydrate": c.rehydrate} {
			link := `href="/console` + nodePath + "/" + change + `"`
			if offered {
				assert.Contains(t, page, link, "%s: %s", name, change)
			} else {
				assert.NotContains(t, page, link, "%s: %s", name, change)
			}
		}
	}
}

// A change of a node asks for its reason, and sends it to the admin API once.
func TestNodeChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backend.node(busy())
	s.login(trust.RoleOperator)
	for _, change := range []string{"lock", "rehydrate"} {
		s.backend.answer("POST "+nodePath+"/"+change, busy())
		assert.Contains(t, s.get("/console"+nodePath+"/"+change).Body.String(), "gpuaas node "+change+" gpu-17")
	}
	assert.Empty(t, s.backend.sent(http.MethodPost))
	form := url.Values{"key": {"key-3"}}
	assert.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/console"+nodePath+"/lock", form).Code, "a lock needs a reason")
	form.Set("reason", "the key was found in an image")
	w := s.do(http.MethodPost, "/console"+nodePath+"/lock", form)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	assert.Equal(t, "/console"+nodePath, w.Header().Get("Location"))
	sent := s.backend.sent(http.MethodPost)
	require.Len(t, sent, 1)
	assert.Equal(t, []string{nodePath + "/lock", "key-3", `{"reason":"the key was found in an image"}`}, []string{sent[0].target, sent[0].key, sent[0].body})
	form.Del("reason")
	assert.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console"+nodePath+"/rehydrate", form).Code, "the end of an operation needs none")

	assert.Contains(t, s.get("/console"+nodePath+"/unlock").Body.String(), "it needs the role admin")
	assert.Equal(t, http.StatusForbidden, s.do(http.MethodPost, "/console"+nodePath+"/unlock", form).Code)
	s.login(trust.RoleAdmin).backend.answer("POST "+nodePath+"/unlock", schema.NewError(schema.KindInvalidRequest, "two machines have the identity"))
	form.Set("reason", "checked")
	assert.Contains(t, s.do(http.MethodPost, "/console"+nodePath+"/unlock", form).Body.String(), "two machines have the identity")
}

// An abandoned operation leads to the page that ends it.
func TestAbandonedOperation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := operation()
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	abandoned := plan.Abandoned(v.Node, lifecycle.NodeActive, lifecycle.Options{}, lifecycle.RunLost)
	v.Operation.Status, v.Operation.Stuck = lifecycle.OperationAbandoned, &abandoned
	s.backend.answer("GET "+operationPath, v)
	assert.Contains(t, s.login(trust.RoleOperator).get("/console"+operationPath).Body.String(), `href="/console/nodes/gpu-17/rehydrate"`)
}
