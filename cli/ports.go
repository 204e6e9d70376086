package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Lifecycle is what the CLI needs of Temporal. Errors are *schema.Error;
// KindServiceUnavailable names the address, with reason no_worker when Temporal
// answers and no worker does.
type Lifecycle interface {
	// Submit starts the action's workflow and returns its early answer, or the
	// typed refusal. The same operation id again attaches to its own run.
	Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error)
	// Status asks an operation for its state. An empty runID means the newest
	// run. KindNotFound when there is none.
	Status(ctx context.Context, workflowID, runID string) (lifecycle.OperationStatus, error)
	// Resolve hands a decision to the running operation and returns the state
	// after it. KindNotFound when none runs.
	Resolve(ctx context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error)
	// Parked lists the running operations that wait for somebody.
	Parked(ctx context.Context) ([]lifecycle.OperationStatus, error)
	// FindNode looks a host name up among the operations Temporal remembers.
	// KindNotFound when there is none.
	FindNode(ctx context.Context, name string) (lifecycle.NodeRef, error)
	// Result waits until the run is closed and returns its final state. It needs
	// no worker.
	Result(ctx context.Context, workflowID, runID string) (lifecycle.OperationStatus, error)
	// ReclaimSchedule says how the reclaimer's schedule does.
	ReclaimSchedule(ctx context.Context) (temporal.ScheduleHealth, error)
	// WebURL is the page of a run in the Web UI.
	WebURL(workflowID, runID string) string
	// Close ends the connection.
	Close()
}

// DialOptions say which Temporal to speak to. Empty fields are read from the
// ecosystem's own configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
// profiles).
type DialOptions struct {
	Address   string
	Namespace string
	// Secrets are what Temporal must never see.
	Secrets []schema.Secret
}

// SetupOptions are what admin setup hands to Platform.Setup.
type SetupOptions struct {
	// Temporal says which Temporal to set up.
	Temporal DialOptions
	// Talk gets a line for each thing made or found.
	Talk io.Writer
}

// Platform is what the CLI is given from outside. The zero value works for
// everything but admin setup and dev.
type Platform struct {
	// Dial connects to Temporal. Defaults to internal/temporal's client.
	Dial func(ctx context.Context, o DialOptions) (Lifecycle, error)
	// Setup prepares database, Vault and Temporal; running it again changes
	// nothing. Defaults to none: admin setup then says so.
	Setup func(ctx context.Context, o SetupOptions) error
	// Dev makes the command group "dev", which runs a stack on this machine.
	// Defaults to none: the group is then missing.
	Dev func(stdout, stderr io.Writer) *cobra.Command
}

// Stdio is the standard streams.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}
