package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// closedDefault is the number of closed runs of each type that admin replay checks.
const closedDefault = 10

// errNotLinked is the error of a command that this build does not link.
func errNotLinked(name string) error {
	return schema.NewError(schema.KindInternal, "this build of gpuaas has no %s: use the gpuaas of the project's build", name)
}

func newAdminReplay(e *env) *cobra.Command {
	o := temporal.ReplayOptions{}
	c := e.command("replay", "Check that open operations can continue with this version",
		`Downloads the histories of operations from Temporal and replays them with the workflows
of this command's version. It changes nothing. Run the new version's command before an
upgrade, and the old version's command before a rollback.

If a history differs, the operation would block on a worker of this version. The command
lists these operations with the reason. Without --all-open, it checks the newest `+strconv.Itoa(temporal.SampleOpen)+`
open operations of each type.

The exit code is 1 if a history differs or could not be read. The command needs Temporal
(--address or TEMPORAL_ADDRESS), and neither a worker nor the admin API.`,
		"  gpuaas admin replay --all-open\n  gpuaas admin replay --all-open --closed 100\n"+
			"  gpuaas admin replay --all-open -o json | jq -r '.differing[].workflow_id'",
		func(ctx context.Context, _ string) error { return runAdminReplay(ctx, e, o) })
	c.Flags().BoolVar(&o.AllOpen, "all-open", false, "check every open operation")
	c.Flags().IntVar(&o.Closed, "closed", closedDefault, "check the newest `N` ended operations of each type")
	return c
}

func runAdminReplay(ctx context.Context, e *env, o temporal.ReplayOptions) error {
	if e.platform.Replay == nil {
		return errNotLinked("replay")
	}
	if o.Closed < 0 {
		return usagef("gpuaas admin replay", "--closed must not be negative")
	}
	o.Progress = editor{e.stderr, clean}
	report, err := e.platform.Replay(ctx, e.temporalConfig(), o)
	if err != nil && report.OK() {
		return err
	}
	if printed := printReplay(e.console, report); err == nil {
		err = printed
	}
	if err != nil || report.OK() {
		return err
	}
	return &exitError{schema.ExitFailed, replayLines(report)}
}

// replayLines say what to do about the histories that differ or were not read.
func replayLines(report temporal.ReplayReport) (lines []string) {
	open := 0
	for _, run := range report.Differing {
		if run.Open {
			open++
		}
	}
	if open > 0 {
		lines = append(lines, text.Count(open, "operation")+" cannot continue with version "+report.Build+
			"; deploy it after they have ended, or deploy a version that can continue them")
	}
	if n := len(report.Differing) - open; n > 0 {
		verb := " differs: only a reset of it"
		if n > 1 {
			verb = " differ: only a reset of them"
		}
		lines = append(lines, text.Count(n, "ended operation")+verb+" cannot continue with version "+report.Build)
	}
	if n := len(report.Unchecked); n > 0 {
		lines = append(lines, text.Count(n, "operation")+" could not be checked; run the command again")
	}
	return lines
}

// replayRow is a run in the output of admin replay, with its result.
type replayRow struct {
	temporal.ReplayedRun
	result string
}

func printReplay(e *console, r temporal.ReplayReport) error {
	e.message("version %s replays %s and %s", r.Build, text.Count(r.Open, "open run"), text.Count(r.Closed, "ended run"))
	var rows []replayRow
	for _, run := range r.Differing {
		rows = append(rows, replayRow{run, "differs"})
	}
	for _, run := range r.Unchecked {
		rows = append(rows, replayRow{run, "not checked"})
	}
	return printList(e, listing[replayRow]{
		object: r, rows: rows, wide: 1,
		header: []string{"RESULT", "TYPE", "WORKFLOW", "RUN", "WHY", "OPEN"},
		cells: func(r replayRow) []string {
			return []string{r.result, r.Type, r.WorkflowID, r.RunID, r.Reason, strconv.FormatBool(r.Open)}
		},
		name: func(r replayRow) string { return r.WorkflowID },
	})
}

// unversioned is the argument for workers without versioning.
const unversioned = "unversioned"

// promoted is the output of admin promote.
type promoted struct {
	// Current is the version that receives work, Before the one that did. Empty means
	// workers without versioning.
	Current string `json:"current"`
	Before  string `json:"before"`
}

func newAdminPromote(e *env) *cobra.Command {
	to := ""
	c := e.command("promote", "Make a version of the worker current",
		`Makes a version of gpuaas-worker current. The current version receives the work of new
and of open operations. Workers of other versions finish the activities that they run and
then are standbys. At least one worker of the version must run.

Without this command, a version takes over when no worker of the current version has
polled Temporal for `+strconv.Itoa(int(temporal.PollerFresh.Seconds()))+` seconds. Promoting the current version again changes nothing.

The command needs Temporal (--address or TEMPORAL_ADDRESS) and not the admin API.`,
		"  gpuaas admin promote\n  gpuaas admin promote --to v0.2.0\n  gpuaas admin promote --to unversioned",
		func(ctx context.Context, _ string) error { return runAdminPromote(ctx, e, to) })
	c.Flags().StringVar(&to, "to", "", "`VERSION` of the workers, or unversioned for workers with GPUAAS_WORKER_VERSIONING=false (default: the version of this command)")
	return c
}

func runAdminPromote(ctx context.Context, e *env, to string) error {
	if e.platform.Promote == nil {
		return errNotLinked("promote")
	}
	switch to {
	case "":
		to = e.platform.Build
	case unversioned:
		to = temporal.Unversioned
	}
	before, err := e.platform.Promote(ctx, e.temporalConfig(), to)
	if err != nil {
		return err
	}
	return e.print(promoted{Current: to, Before: before}, func(w io.Writer) {
		fmt.Fprintf(w, "current: %s\n", temporal.VersionName(to))
		if before != to {
			fmt.Fprintf(w, "before:  %s\n", temporal.VersionName(before))
		}
	}, to)
}
