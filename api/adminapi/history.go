package adminapi

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	auditPage    = 100
	maxAuditPage = 1000
	systemStream = "system"
)

// audit returns a page of a node's audit stream, or the list of streams.
func (a *API) audit(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	q := r.URL.Query()
	after, err := number(q, "after", 0, 1<<62)
	if err != nil {
		return err
	}
	limit, err := number(q, "limit", auditPage, maxAuditPage)
	if err != nil {
		return err
	}
	page := wire.AuditPage{Events: []audit.Event{}}
	if q.Get("node") == "" {
		if page.Streams, err = a.cfg.Store.AuditStreams(r.Context()); err != nil {
			return err
		}
		return edge.JSON(w, http.StatusOK, page)
	}
	stream, err := a.stream(r, q.Get("node"))
	if err != nil {
		return err
	}
	// One more than asked for says whether there is a further page.
	events, err := a.cfg.Store.Audit(r.Context(), stream, after, int(limit)+1)
	if err != nil {
		return err
	}
	if int64(len(events)) > limit {
		events, page.More = events[:limit], true
	}
	page.Events = append(page.Events, events...)
	return edge.JSON(w, http.StatusOK, page)
}

// stream returns the audit stream of a node named by id or host name.
func (a *API) stream(r *http.Request, node string) (string, error) {
	if node == systemStream {
		return systemStream, nil
	}
	return a.nodeID(r, node)
}

func (a *API) nodeID(r *http.Request, name string) (string, error) {
	if !schema.IsID(name) && !validHost(name) {
		return "", schema.Errorf(schema.KindNotFound, "no such node")
	}
	node, err := a.cfg.Store.Node(r.Context(), name)
	return node.ID, err
}

// operations lists operations, newest first.
func (a *API) operations(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	q := r.URL.Query()
	open := false
	if text := q.Get("open"); text != "" {
		var err error
		if open, err = strconv.ParseBool(text); err != nil {
			return badField("open", "must be true or false")
		}
	}
	nodeID := ""
	if q.Get("node") != "" {
		var err error
		if nodeID, err = a.nodeID(r, q.Get("node")); err != nil {
			return err
		}
	}
	ops, err := a.cfg.Store.Operations(r.Context(), nodeID, open)
	if err != nil {
		return err
	}
	if ops == nil {
		ops = []wire.OperationSummary{}
	}
	return edge.JSON(w, http.StatusOK, wire.OperationList{Operations: ops})
}

// number reads a whole number of the query from 0 to most.
func number(q url.Values, name string, standard, most int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return standard, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, badField(name, "must be a number from 0 to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}
