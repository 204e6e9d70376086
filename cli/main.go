package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/restore"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Main runs one command line (without the program's name) and returns the exit
// code. The end of ctx is the operator's interrupt.
func Main(ctx context.Context, p Platform, args []string, stdio Stdio) int {
	if p.Dial == nil {
		p.Dial = func(c temporal.Config) (Lifecycle, error) {
			client, err := temporal.Dial(c)
			if err != nil {
				return nil, err
			}
			return client.Operations, nil
		}
	}
	return run(ctx, newEnv(p, stdio), args)
}

func run(ctx context.Context, e *env, args []string) int {
	defer e.close()
	root := newRoot(e)
	root.SetArgs(args)
	findOutput(&e.output, args)
	if e.platform.Trace == nil {
		return e.report(ctx, root.ExecuteContext(ctx))
	}
	name := root.Name()
	if command, _, err := root.Find(args); err == nil {
		name = command.CommandPath()
	}
	ctx, end := e.platform.Trace(ctx, name, e.correlationID)
	code := e.report(ctx, root.ExecuteContext(ctx))
	end(code)
	return code
}

// Lifecycle is the part of Temporal that --direct uses. Errors are *schema.Error;
// KindServiceUnavailable names the address, with reason no_worker when Temporal
// responds and no worker does.
type Lifecycle interface {
	// Submit starts the action's workflow and returns the operation as accepted, or
	// the typed refusal. The same operation id attaches to its own run.
	Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error)
	// Status queries an operation. An empty runID means the newest run.
	// KindNotFound when there is none.
	Status(ctx context.Context, workflowID, runID string) (lifecycle.OperationStatus, error)
	// Resolve delivers a decision to the running operation and returns the state
	// after it. KindNotFound when none runs.
	Resolve(ctx context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error)
	// Resolved returns the first response to a decision by its id, even after the run
	// ended. KindNotFound if the run received no such decision.
	Resolved(ctx context.Context, workflowID, runID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error)
	// Parked lists the operations that are parked or overdue, oldest first. complete is
	// false if there was no time to read all of them.
	Parked(ctx context.Context) (ops []lifecycle.OperationStatus, complete bool, err error)
	// FindNode looks a host name up among the operations that Temporal retains.
	// KindNotFound when there is none.
	FindNode(ctx context.Context, name string) (lifecycle.NodeRef, error)
	// Result waits until the run is closed and returns its final state. It needs
	// no worker.
	Result(ctx context.Context, workflowID, runID string) (lifecycle.OperationStatus, error)
	// RunEnd returns how the operation's last run ended, or "" while a run of it is
	// open. It needs no worker.
	RunEnd(ctx context.Context, op lifecycle.Operation) (lifecycle.RunEnd, error)
	// RunFaults returns the calls of the operation's open run that fail and are retried. It
	// needs no worker.
	RunFaults(ctx context.Context, op lifecycle.Operation) ([]wire.ControlPlaneFault, error)
	// Described returns what Temporal has about the newest run without a worker. If that
	// run is closed, the operation has an end and no status. KindNotFound when there is none.
	Described(ctx context.Context, workflowID string) (lifecycle.OperationStatus, error)
	// Faults returns the faults of Temporal that need an operator.
	Faults(ctx context.Context) []wire.ControlPlaneFault
	// WebURL is the page of a run in the Web UI.
	WebURL(workflowID, runID string) string
	// Close ends the connection.
	Close()
}

// Platform is the part of the program that this package does not link. The zero value
// works for every command except dev and admin setup, replay and promote.
type Platform struct {
	// Dial connects to Temporal. Defaults to internal/temporal's client.
	Dial func(c temporal.Config) (Lifecycle, error)
	// Setup prepares database, Vault and the given Temporal, and writes a line to log
	// for each object that it creates or finds. Running it again changes nothing.
	// Without it admin setup fails.
	Setup func(ctx context.Context, c temporal.Config, log io.Writer) error
	// Check checks the parts of the installation that the environment and the given Temporal name.
	// Without it admin check fails.
	Check func(ctx context.Context, c temporal.Config) (diagnosis.Report, error)
	// RotateSecretIDs creates Vault secret IDs for worker and API. Without it admin
	// rotate-secret-ids fails.
	RotateSecretIDs func(ctx context.Context, log io.Writer) error
	// Replay replays histories of the given Temporal with the workflows of this program;
	// see temporal.Replays. Without it admin replay fails.
	Replay func(ctx context.Context, c temporal.Config, o temporal.ReplayOptions) (temporal.ReplayReport, error)
	// Promote makes a build of the worker current and returns the one before; see
	// temporal.Deployments. Without it admin promote fails. Build is the build ID of
	// this program's version.
	Promote func(ctx context.Context, c temporal.Config, build string) (before string, err error)
	Build   string
	// Backup writes a dump of the database of the environment into a file, and lines about its progress.
	Backup func(ctx context.Context, file string, progress io.Writer) (Backup, error)
	// Drill restores a dump, "" for a new one, into a scratch database and checks it.
	Drill func(ctx context.Context, file string, progress io.Writer) (diagnosis.Report, error)
	// RestoreMode starts, ends or reads the restore mode in the database of the environment.
	// Without it admin restore-mode fails.
	RestoreMode func(ctx context.Context, o RestoreOptions) (restore.Mode, error)
	// Trace makes a span of the command, whose requests have the correlation ID. nil makes none.
	Trace func(ctx context.Context, command, correlationID string) (traced context.Context, end func(exitCode int))
	// Dev makes the command group "dev", which runs a stack on this machine. The
	// printer prints its results in the selected format.
	// Without it the group is missing.
	Dev func(stdout, stderr io.Writer, printer func(v any, text func(w io.Writer)) error) *cobra.Command
}

// Stdio is the standard streams.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// Commands returns the commands of the CLI, from which documents are generated. They do
// not depend on the environment and must not be executed.
func Commands() *cobra.Command {
	e := newEnv(Platform{}, Stdio{})
	e.getenv = func(string) string { return "" }
	return newRoot(e)
}
