package lifecycle_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestAdmit(t *testing.T) {
	t.Parallel()
	work := []string{"process train-1"}
	for name, tc := range map[string]struct {
		node    lifecycle.Candidate
		action  lifecycle.Action
		options lifecycle.Options
		kind    schema.Kind
		reason  string
	}{
		"state":                {lifecycle.Candidate{State: lifecycle.NodeActive}, lifecycle.ActionRemove, lifecycle.Options{}, schema.KindInvalidRequest, "invalid_state"},
		"provisioned":          {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning}, lifecycle.ActionProvision, lifecycle.Options{}, schema.KindInvalidRequest, "already_provisioned"},
		"not enrolled":         {lifecycle.Candidate{State: lifecycle.NodeRegistered}, lifecycle.ActionProvision, lifecycle.Options{}, schema.KindInvalidRequest, "not_enrolled"},
		"created":              {lifecycle.Candidate{State: lifecycle.NodeRegistered, Creates: true}, lifecycle.ActionProvision, lifecycle.Options{}, "", ""},
		"busy retire":          {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionRetire, lifecycle.Options{}, schema.KindNodeInUse, ""},
		"busy drained":         {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionRetire, lifecycle.Options{Drain: true}, "", ""},
		"forced retire":        {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionRetire, lifecycle.Options{Force: true}, "", ""},
		"busy remove":          {lifecycle.Candidate{State: lifecycle.NodeRetired, Workloads: work}, lifecycle.ActionRemove, lifecycle.Options{}, schema.KindNodeInUse, ""},
		"forced remove":        {lifecycle.Candidate{State: lifecycle.NodeRetired, Workloads: work}, lifecycle.ActionRemove, lifecycle.Options{Force: true}, "", ""},
		"idle remove":          {lifecycle.Candidate{State: lifecycle.NodeRetired}, lifecycle.ActionRemove, lifecycle.Options{}, "", ""},
		"never enrolled":       {lifecycle.Candidate{State: lifecycle.NodeRegistered}, lifecycle.ActionRemove, lifecycle.Options{}, "", ""},
		"busy but only drains": {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionDrain, lifecycle.Options{}, "", ""},
	} {
		p, err := tc.node.Admit(tc.action, tc.options)
		if tc.kind == "" {
			require.NoError(t, err, name)
			require.Equal(t, tc.action, p.Action, name)
			continue
		}
		require.Equal(t, tc.kind, schema.KindOf(err), name)
		require.Equal(t, tc.reason, schema.AsError(err).Reason, name)
	}
}
