package clusteragent

import (
	"context"
	"errors"
)

// Executor changes the machines of nodes.
type Executor interface {
	// Reboot restarts the machine of the node with this name, without a clean stop of its operating
	// system. It returns within the context's deadline. If the error is ErrNotRebooted, nothing
	// happened and a repetition is safe; after any other error, the machine may have restarted.
	Reboot(ctx context.Context, node string) error
}

// ErrNotRebooted is wrapped by errors of an Executor that has certainly not restarted the machine.
var ErrNotRebooted = errors.New("the machine was not restarted")

// NewNopExecutor returns an Executor that does nothing.
func NewNopExecutor() Executor { return nopExecutor{} }

type nopExecutor struct{}

func (nopExecutor) Reboot(context.Context, string) error { return nil }
