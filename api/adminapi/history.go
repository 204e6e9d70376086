package adminapi

import (
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// audit lists the events of all streams, newest first.
func (a *API) audit(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	p := readParams(r.URL)
	q := AuditQuery{Page: p.page(3), Actions: p.list("action"), Actors: p.list("actor"), Results: p.list("result"), Since: p.since(time.Now())}
	node, fields := p.one("node"), p.fields()
	if err := p.check(); err != nil {
		return err
	}
	var err error
	if node != "" {
		if q.Stream, err = a.stream(r, node); err != nil {
			return err
		}
	}
	events, next, err := a.cfg.Views.ListAudit(r.Context(), q)
	if err != nil {
		return err
	}
	return answerList(w, "events", events, next, fields)
}

func (a *API) auditStreams(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	if err := readParams(r.URL).check(); err != nil {
		return err
	}
	streams, err := a.cfg.Views.AuditStreams(r.Context())
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, wire.AuditStreamList{Streams: append([]string{}, streams...)})
}

// auditStream returns a part of one stream in order of seq.
func (a *API) auditStream(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	p := readParams(r.URL)
	after, limit := p.number("after", 0, 0, 1<<62), int(p.number("limit", wire.DefaultPage, 1, wire.MaxPage))
	if err := p.check(); err != nil {
		return err
	}
	stream, err := a.stream(r, r.PathValue("stream"))
	if err != nil {
		return err
	}
	// One more than asked for tells whether there is a further page.
	events, err := a.cfg.Views.AuditStream(r.Context(), stream, after, limit+1)
	if err != nil {
		return err
	}
	page := wire.AuditStreamPage{More: len(events) > limit}
	page.Events = append([]audit.Event{}, events[:min(limit, len(events))]...)
	return edge.JSON(w, http.StatusOK, page)
}

// stream returns the audit stream of a node named by id or host name.
func (a *API) stream(r *http.Request, node string) (string, error) {
	if node == audit.SystemStream || schema.IsID(node) {
		return node, nil
	}
	return a.nodeID(r, node)
}

// nodeID finds the node that a query parameter names by id or host name.
func (a *API) nodeID(r *http.Request, name string) (string, error) {
	if !schema.IsID(name) && !validHost(name) {
		return "", schema.Errorf(schema.KindNotFound, "no such node")
	}
	node, err := a.cfg.Views.Node(r.Context(), name)
	return node.ID, err
}

// since reads a time, or a duration before now such as 24h.
func (p *params) since(now time.Time) time.Time {
	if d, err := time.ParseDuration(p.values.Get("since")); err == nil && d > 0 {
		p.known["since"] = true
		return now.Add(-d)
	}
	return p.time("since")
}
