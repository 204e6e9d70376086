package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// auditPage is how many events one request asks for.
const auditPage = 500

type auditOptions struct {
	node, since   string
	actor, action []string
	verify        bool
	limit         int
}

func newAudit(e *env) *cobra.Command {
	var o auditOptions
	c := &cobra.Command{
		Use: "audit", Short: "Read or verify the audit trail",
		Long: `Prints the audit trail, oldest event first: actor, action, node, result and reason.
Each node has its own stream; events without a node are in the stream "system".

--verify reads every row of the streams and checks their hash chains: a row that
is missing, changed or out of order is named, and the exit code is 1.`,
		Example: "  gpuaas audit --node gpu-17\n  gpuaas audit --verify\n  gpuaas audit -o json --limit 0",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runAudit(c.Context(), e, o) },
	}
	c.Flags().StringVar(&o.node, "node", "", "only this node (id or host name), or the stream system")
	c.Flags().StringVar(&o.since, "since", "", "only events since a time, or within a duration such as 24h")
	c.Flags().StringSliceVar(&o.actor, "actor", nil, "only events of these actors")
	c.Flags().StringSliceVar(&o.action, "action", nil, "only these actions, for example nodes.drain")
	c.Flags().BoolVar(&o.verify, "verify", false, "check the hash chains instead of printing")
	c.Flags().IntVar(&o.limit, "limit", 200, "print the newest N events; 0 for all")
	e.completeNodeFlag(c)
	return c
}

func runAudit(ctx context.Context, e *env, o auditOptions) error {
	if o.limit < 0 {
		return usagef("gpuaas audit", "--limit %d: want 0 or more", o.limit)
	}
	api, err := e.api()
	if err != nil {
		return err
	}
	if !o.verify {
		return runAuditList(ctx, e, api, o)
	}
	streams, err := auditStreams(ctx, api, o.node)
	if err != nil {
		return err
	}
	return runAuditVerify(ctx, e, api, streams)
}

// auditStreams is the stream of one node, or every stream.
func auditStreams(ctx context.Context, api *adminAPI, node string) ([]string, error) {
	switch node {
	case "":
		return api.auditStreams(ctx)
	case "system":
		return []string{node}, nil
	}
	if schema.IsID(node) {
		return []string{node}, nil
	}
	view, err := api.node(ctx, node)
	return []string{view.ID}, err
}

// eachPage reads a stream page by page.
func eachPage(ctx context.Context, api *adminAPI, stream string, use func([]audit.Event) error) error {
	after := int64(0)
	for {
		page, err := api.auditStream(ctx, stream, after, auditPage)
		if err != nil {
			return err
		}
		if err := use(page.Events); err != nil {
			return err
		}
		if !page.More || len(page.Events) == 0 {
			return nil
		}
		last := page.Events[len(page.Events)-1].Seq
		if last <= after {
			return schema.Errorf(schema.KindInternal, "audit stream %s: the admin API gives row %d again after row %d", stream, last, after)
		}
		after = last
	}
}

func runAuditList(ctx context.Context, e *env, api *adminAPI, o auditOptions) error {
	q := adminclient.ListAuditParams{Node: given(o.node), Since: given(o.since), Actor: several(o.actor), Action: several(o.action)}
	events, err := api.audit(ctx, q, o.limit)
	if err != nil {
		return err
	}
	slices.Reverse(events)
	if o.limit > 0 && len(events) == o.limit {
		e.say("the newest %d events; --limit 0 prints all", o.limit)
	}
	return e.print(map[string][]audit.Event{"events": events}, func(w io.Writer) {
		row(w, "AT", "ACTOR", "VIA", "ACTION", "TARGET", "RESULT", "REASON")
		for _, v := range events {
			row(w, v.At.UTC().Format(time.RFC3339), v.Actor, dash(v.Via), v.Action, cmp.Or(v.Target, v.Stream), v.Result, dash(v.Reason))
		}
	})
}

// auditVerdict is what audit --verify prints.
type auditVerdict struct {
	Verified bool   `json:"verified"`
	Rows     int    `json:"rows"`
	Streams  int    `json:"streams"`
	Fault    string `json:"fault,omitempty"`
}

func runAuditVerify(ctx context.Context, e *env, api *adminAPI, streams []string) error {
	verdict := auditVerdict{Verified: true}
	for _, s := range streams {
		rows, fault, err := verifyStream(ctx, api, s)
		if err != nil {
			return err
		}
		verdict.Rows += rows
		verdict.Streams++
		if fault != nil {
			verdict.Verified, verdict.Fault = false, fault.Error()
			break
		}
	}
	err := e.print(verdict, func(w io.Writer) {
		if verdict.Verified {
			fmt.Fprintf(w, "verified %s of %s: no fault\n", count(verdict.Rows, "row"), count(verdict.Streams, "stream"))
			return
		}
		row(w, fmt.Sprintf("FAULT after %s of %s: %s", count(verdict.Rows, "good row"), count(verdict.Streams, "stream"), verdict.Fault))
	})
	if err == nil && !verdict.Verified {
		err = &exitError{schema.ExitFailed, []string{"the audit trail was changed or is incomplete: keep the database as it is and look into it"}}
	}
	return err
}

// verifyStream checks one chain. rows counts the good rows before the fault.
func verifyStream(ctx context.Context, api *adminAPI, stream string) (rows int, fault, err error) {
	var last *audit.Event
	err = eachPage(ctx, api, stream, func(page []audit.Event) error {
		for i := range page {
			event := page[i]
			if event.Stream != stream {
				fault = fmt.Errorf("audit stream %s: row %d belongs to stream %s", stream, event.Seq, event.Stream)
			} else {
				fault = audit.VerifyChain(last, []audit.Event{event})
			}
			if fault != nil {
				return fault
			}
			last = &event
			rows++
		}
		return nil
	})
	if fault != nil {
		return rows, fault, nil
	}
	return rows, nil, err
}
