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
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newNodeSignals(e *env) *cobra.Command {
	var q adminclient.ListNodeSignalsParams
	var limit uint
	var watch bool
	c := e.command("signals NODE", "Show the signals of a node",
		`Shows the signals of a node, newest first: it fell silent or returned, it booted, a
condition of its health changed, its provider refused a machine. Text in quotes was
reported by the node or by the cluster agent: it is not verified. If a node causes more
than 256 signals in an hour, one signal signals.dropped counts the others.

"gpuaas node show" has the present conditions. Signals are kept for 90 days, unless
GPUAAS_RETAIN_SIGNALS of gpuaas-worker is set.`,
		"  gpuaas node signals gpu-17 --since 24h\n  gpuaas node signals gpu-17 --type 'health.*' -w\n  gpuaas node signals gpu-17 -o json",
		func(ctx context.Context, node string) error {
			ctl := e.apiControl()
			return e.refresh(ctx, ctl, watch, func() error {
				signals, err := listSignals(ctx, ctl.Client, node, q, limit)
				if err != nil {
					return err
				}
				e.clearScreen(watch)
				return printSignals(e.console, signals)
			})
		})
	addSince(c, &q.Since, "signals")
	addOpenFilter(c, &q.Type, "type", "only these `TYPES`; health.* means each type with this beginning", signalTypes(), func(string) error { return nil })
	addFilter(c, &q.Status, "status", "only changes of a condition to these `STATUSES`", health.Healthy, health.Unhealthy, health.Unknown)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "refresh until interrupted")
	c.Flags().UintVar(&limit, "limit", wire.DefaultPage, "show the newest N; 0 for all")
	return c
}

// signalTypes are the types that completion suggests.
func signalTypes() []string {
	return texts([]health.SignalType{health.SignalSilent, health.SignalReturned, health.SignalBooted, health.SignalDrift, health.SignalSpotNotice,
		health.SignalQuota, health.SignalRecovery, signal.Dropped, health.ConditionSignal("*")})
}

// listSignals returns the signals of a node, newest first.
func listSignals(ctx context.Context, api *adminclient.Client, node string, q adminclient.ListNodeSignalsParams, limit uint) ([]health.Signal, error) {
	return pages(limit, func(size *int, token *string) ([]health.Signal, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[signal.List](api.ListNodeSignals(ctx, node, &q))
		return list.Signals, list.NextPageToken, err
	})
}

func printSignals(e *console, signals []health.Signal) error {
	return printList(e, listing[health.Signal]{
		object: signal.List{Signals: signals}, rows: signals, empty: "no signal matches",
		header: []string{"TIME", "TYPE", "STATUS", "COMPONENT", "REASON", "REPAIR", "DETAIL", "SOURCE", "BOOT", "INSTANCE", "ID"}, wide: 4,
		cells: func(s health.Signal) []string {
			return []string{s.At.UTC().Format(time.RFC3339), string(s.Type), dash(string(s.Status)), dash(s.Component), dash(faultName(s.Reason, s.Code)),
				dash(string(s.Repair)), dash(signalDetail(s)), string(s.Source), dash(s.BootID), dash(s.InstanceID), s.SignalID}
		},
		name: func(s health.Signal) string { return s.SignalID },
	})
}

// faultName is the reason of a condition with the code of its device.
func faultName(reason string, code int) string {
	if code == 0 {
		return reason
	}
	return reason + " " + strconv.Itoa(code)
}

// signalDetail is the detail of a signal, in quotes if the node or the cluster agent reported it.
func signalDetail(s health.Signal) string {
	if s.Detail != "" && (s.Status != "" || s.Type == health.SignalBooted) {
		return strconv.Quote(s.Detail)
	}
	return s.Detail
}

// writeHealth shows the unhealthy conditions of a node, how many others there are, and its newest
// signals.
func writeHealth(e *console, w io.Writer, n wire.NodeView, signals []health.Signal) {
	label, others := "Health:", map[string]int{}
	for _, c := range n.Conditions {
		switch {
		case c.Stale:
			others["without a recent report"]++
		case c.Status != health.Unhealthy:
			others[string(c.Status)]++
		default:
			row(w, label, fmt.Sprintf("%s: %s, needs %s, since %s", strings.TrimSpace(c.Checker+" "+c.Component), faultName(c.Reason, c.Code), c.Repair, e.stamp(c.Since)))
			by := fmt.Sprintf("by the %s, %s ago", c.Source, lifecycle.Span(e.clock.now().Sub(c.ReportedAt)))
			if c.Detail != "" {
				by += fmt.Sprintf(": %q", c.Detail)
			}
			row(w, "", by)
			label = ""
		}
	}
	var words []string
	for _, name := range []string{string(health.Healthy), string(health.Unknown), "without a recent report"} {
		if others[name] > 0 {
			words = append(words, fmt.Sprintf("%d %s", others[name], name))
		}
	}
	if len(words) > 0 {
		row(w, label, strings.Join(words, ", "))
	}
	label = "Signals:"
	for _, s := range signals {
		row(w, label, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %s %s", s.At.UTC().Format(time.RFC3339), s.Type, s.Component, s.Status,
			faultName(s.Reason, s.Code), signalDetail(s))), " "))
		label = ""
	}
}
