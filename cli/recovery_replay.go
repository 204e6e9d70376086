package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/recovery/replay"
	"github.com/gpuaas/gpuaas/schema/signal"
)

// replaySince is how far a replay goes back without --since.
const replaySince = "720h"

// replayOptions are the flags of gpuaas recovery replay.
type replayOptions struct {
	policy string
	since  *string
	step   time.Duration
	asIs   bool
	replay.Options
}

func newRecoveryReplay(e *env) *cobra.Command {
	o := replayOptions{since: given(replaySince)}
	var c *cobra.Command
	c = e.command("replay", "Try a policy on what was recorded",
		`Runs the policy in use and another one over the recorded signals and repairs, and shows
where their decisions differ: which repairs would start, what would stop them, and how many
would run at once. It changes nothing. A repair that was not recorded is assumed to cure its
fault, unless --not-cured is given. The record has conditions and boots; it has no times
in which nodes were silent or held by operators. The output names the brakes that are not
simulated as they were.

Both policies are replayed as armed, so that a policy in the mode monitor shows what it would
do; with --as-is, each in its own mode.`,
		"  gpuaas recovery replay --policy policy.yaml\n  gpuaas recovery replay --policy policy.yaml --since 168h -o json | jq .counts",
		func(ctx context.Context, _ string) error { return replayPolicy(ctx, e, c, o) })
	f := c.Flags()
	f.StringVar(&o.policy, "policy", "", "the policy to try, in YAML or JSON (required)")
	addSince(c, &o.since, "what was recorded")
	f.DurationVar(&o.step, "step", time.Minute, "time between two rounds of the replay")
	f.BoolVar(&o.NotCured, "not-cured", false, "assume that a repair that was not recorded does not cure its fault")
	f.BoolVar(&o.asIs, "as-is", false, "replay each policy in its own mode")
	return c
}

func replayPolicy(ctx context.Context, e *env, c *cobra.Command, o replayOptions) error {
	if o.step < time.Second {
		return usagef(c.CommandPath(), "--step must be at least 1s")
	}
	file, err := readPolicy(c.CommandPath(), "--policy", o.policy)
	if err != nil {
		return err
	}
	f, err := decode[record.Facts](e.api().GetRecoveryFacts(ctx, &adminclient.GetRecoveryFactsParams{Since: o.since}))
	if err != nil {
		return err
	}
	before, err := f.Policy.Decode()
	if err != nil {
		return err
	}
	signals, err := recordedSignals(ctx, e.api(), o.since)
	if err != nil {
		return err
	}
	if f.Truncated {
		e.message("warning: there are more repairs than the admin API returns; the effects of older ones are assumed")
	}
	after := file.Policy
	if !o.asIs {
		before.Mode, after.Mode = recovery.ModeArmed, recovery.ModeArmed
	}
	past := replay.Facts{Nodes: withAttempts(f), Sizes: f.Sizes, Signals: signals, Until: f.At}
	if err := past.Check(o.step); err != nil {
		return err
	}
	return printPolicyReplay(e.console, replay.Run(before, after, replay.Rounds(past, o.step), o.Options))
}

// maxReplaySignals bounds the signals of a replay.
const maxReplaySignals = 500_000

// recordedSignals returns the signals that a replay needs.
func recordedSignals(ctx context.Context, api *adminclient.Client, since *string) ([]health.Signal, error) {
	types := []string{string(health.ConditionSignal("*")), string(health.SignalBooted)}
	all, err := pages(maxReplaySignals, func(size *int, token *string) ([]health.Signal, string, error) {
		list, err := decode[signal.List](api.ListSignals(ctx, &adminclient.ListSignalsParams{Limit: size, PageToken: token, Since: since, Type: &types}))
		return list.Signals, list.NextPageToken, err
	})
	if err == nil && len(all) >= maxReplaySignals {
		err = schema.NewError(schema.KindInvalidRequest, "more than %d signals were recorded since %s", maxReplaySignals-1, *since).
			WithReason("bad_record").WithNext("replay a shorter time: gpuaas recovery replay --since 24h --policy FILE")
	}
	return all, err
}

// withAttempts returns the nodes with their attempts.
func withAttempts(f record.Facts) []recovery.Node {
	of := map[string][]recovery.Attempt{}
	for _, a := range f.Attempts {
		of[a.NodeID] = append(of[a.NodeID], a)
	}
	nodes := f.Nodes
	for i := range nodes {
		nodes[i].Attempts = of[nodes[i].NodeID]
	}
	return nodes
}

func printPolicyReplay(e *console, d replay.Diff) error {
	if d.Rounds == 0 {
		e.message("no fault was recorded in that time: there is nothing to compare")
	}
	return e.print(d, func(w io.Writer) {
		if d.Rounds == 0 {
			return
		}
		fmt.Fprintf(w, "%d rounds with a fault from %s to %s\n", d.Rounds, d.From.UTC().Format(time.RFC3339), d.To.UTC().Format(time.RFC3339))
		if len(d.Counts) > 0 {
			fmt.Fprintln(w)
			row(w, "WHAT", "NAME", "IN USE", "NEW")
		}
		for _, n := range d.Counts {
			row(w, n.Kind, dash(clean(n.Name)), strconv.Itoa(n.Old), strconv.Itoa(n.New))
		}
		writePeaks(w, "most at once", d.Peaks)
		writePeaks(w, "most out of service", d.Out)
		writeReplayChanges(w, d.Changes)
		fmt.Fprintln(w, "\nNot simulated as it was:")
		for _, a := range d.Assumed {
			row(w, "  "+string(a.Brake), a.Why)
		}
	})
}

func writePeaks(w io.Writer, what string, peaks []replay.Peak) {
	for _, p := range peaks {
		row(w, what, strings.TrimSpace(string(p.Scope)+" "+clean(p.Key)), strconv.Itoa(p.Old), strconv.Itoa(p.New))
	}
}

// maxReplayChanges bounds the differences that the table lists.
const maxReplayChanges = 50

func writeReplayChanges(w io.Writer, changes []replay.Change) {
	fmt.Fprintln(w)
	if len(changes) == 0 {
		fmt.Fprintln(w, "Both policies decide the same.")
		return
	}
	row(w, "TIME", "NODE", "FAULT", "IN USE", "NEW", "WHY")
	for _, c := range changes[:min(len(changes), maxReplayChanges)] {
		row(w, c.At.UTC().Format(time.RFC3339), clean(c.Host), dash(faultText(c.Fault)), choiceText(c.Old), choiceText(c.New), dash(clean(c.New.Why)))
	}
	if more := len(changes) - maxReplayChanges; more > 0 {
		fmt.Fprintf(w, "and %d more; -o json has all\n", more)
	}
}

// choiceText is a decision in a few words: the repair, or what stops it.
func choiceText(c replay.Choice) string {
	switch {
	case c.Rung == "" && c.Brake == "":
		return "nothing"
	case c.Brake != "":
		return "stopped by " + string(c.Brake)
	}
	return string(c.Rung)
}
