package adminapi

import (
	"math"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// trail serves the audit trail.
type trail struct{ base }

// list lists the events of all streams, newest first.
func (t trail) list(c *call) (any, error) {
	q := t.listQuery(c)
	of := AuditQuery{Page: q.page(3), Stream: q.stream(), Actions: words(q, "action", audit.Actions()...), Actors: words[string](q, "actor"),
		Results: words(q, "result", audit.Results()...), Since: q.since(), Selector: q.selector()}
	return page(q, "events", of, t.Trail.ListAudit)
}

// streams lists the streams of the trail in order.
func (t trail) streams(c *call) (any, error) {
	q := t.query(c)
	return page(q, "streams", q.page(1), t.Trail.AuditStreams)
}

// stream returns a part of one stream in order of seq.
func (t trail) stream(c *call) (any, error) {
	q := t.query(c)
	after, limit := q.number("after", 0, 0, math.MaxInt), q.limit()
	if err := q.check(); err != nil {
		return nil, err
	}
	stream, err := t.streamOf(c.Context(), c.PathValue("stream"))
	if err != nil {
		return nil, err
	}
	head, err := t.Trail.AuditHead(c.Context(), stream)
	if err != nil {
		return nil, err
	}
	// The one event beyond the limit shows that there is a further page.
	events, err := t.Trail.AuditStream(c.Context(), stream, int64(after), limit+1)
	return wire.AuditStreamPage{Events: append([]audit.Event{}, events[:min(limit, len(events))]...), More: len(events) > limit,
		HeadSeq: head.Seq, HeadHash: head.Hash}, err
}

// checkpoints returns signed checkpoints of the trail in order, and the public keys that
// verify them.
func (t trail) checkpoints(c *call) (any, error) {
	q := t.query(c)
	after, limit := q.number("after", 0, 0, math.MaxInt), q.limit()
	if err := q.check(); err != nil {
		return nil, err
	}
	list, err := t.Checkpoints.After(c.Context(), int64(after), limit+1)
	if err != nil {
		return nil, err
	}
	keys, err := t.CheckpointKeys(c.Context())
	return audit.CheckpointPage{Checkpoints: append([]audit.StoredCheckpoint{}, list[:min(limit, len(list))]...), More: len(list) > limit, Keys: keys}, err
}

// acceptGap ends the alarm about checkpoints that the database lost.
func (t trail) acceptGap(c *call) (any, error) {
	req, err := body(c, edge.Decode, func(g *audit.Gap) error { return checkReason(g.Reason, true) })
	if err != nil {
		return nil, err
	}
	req.Checkpoints, err = t.Checkpoints.AcceptMissing(c.Context(), req.Reason, c.by)
	return req, err
}
