package store

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Watched implements activities.Abandoner.
func (s *Operations) Watched(context.Context, string, int) ([]activities.WatchedOperation, error) {
	return nil, errNotBuilt()
}

// Abandon implements activities.Abandoner.
func (s *Operations) Abandon(context.Context, string, string, lifecycle.RunEnd) error {
	return errNotBuilt()
}

// HoldingOperation returns the open operations of the node that are not abandoned, the
// one that holds the node first, then its reissue. It is empty if there is none.
// KindNotFound if there is no such node.
func (s *Operations) HoldingOperation(context.Context, string) ([]activities.WatchedOperation, error) {
	return nil, errNotBuilt()
}

// AcceptAbandoned accepts the end of the node's abandoned operations; see
// lifecycle.Rehydration. Repeating a call changes nothing. KindNotFound if there is no
// such node; KindOperationInProgress, reason not_abandoned, if an open operation of the
// node is not abandoned.
func (s *Operations) AcceptAbandoned(context.Context, string, string, audit.Subject) (lifecycle.Rehydration, error) {
	return lifecycle.Rehydration{}, errNotBuilt()
}

func errNotBuilt() error { return schema.NewError(schema.KindInternal, "not built") }
