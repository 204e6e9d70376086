package nodeapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

const (
	defaultPoll = 55 * time.Second
	maxHave     = 64
)

// poll is what a wait request asks for.
type poll struct {
	timeout time.Duration
	have    []string // tasks of the agent's journal
}

func parsePoll(q url.Values) (poll, error) {
	p := poll{timeout: defaultPoll}
	if len(q["timeout"]) > 1 || len(q["have"]) > 1 {
		return p, schema.NewError(schema.KindInvalidRequest, "timeout and have may be given once").WithReason("bad_query")
	}
	if q.Has("timeout") {
		d, err := time.ParseDuration(q.Get("timeout"))
		if err != nil || d < 0 {
			return p, schema.NewError(schema.KindInvalidRequest, "timeout must be a duration such as 55s").WithReason("bad_timeout")
		}
		p.timeout = min(d, schema.MaxPollTimeout)
	}
	if q.Get("have") == "" {
		return p, nil
	}
	p.have = strings.Split(q.Get("have"), ",")
	if len(p.have) > maxHave {
		return p, schema.NewError(schema.KindInvalidRequest, "have lists more than %d tasks", maxHave).WithReason("bad_have")
	}
	for _, id := range p.have {
		if !schema.IsID(id) {
			return p, schema.NewError(schema.KindInvalidRequest, "have must list task ids").WithReason("bad_have")
		}
	}
	return p, nil
}

// wait is the long poll. It subscribes before it looks, so that no wake is lost
// between the two, and before it reads the node's row, so that a fence is not
// lost either. Every wake checks the identity again.
func (a *API) wait(w http.ResponseWriter, r *http.Request) error {
	p, err := a.identify(r)
	if err != nil {
		return err
	}
	wake, unsubscribe := a.cfg.Wakes.Subscribe(p.id.NodeID)
	defer unsubscribe()
	c, err := a.admit(r, p)
	if err != nil {
		return err
	}
	q, err := parsePoll(r.URL.Query())
	if err != nil {
		return err
	}
	if err := a.polled(r.Context(), c, p); err != nil {
		return err
	}
	defer a.cfg.Metrics.PollOpened()()
	return a.park(w, r, c, q, wake)
}

func (a *API) polled(ctx context.Context, c Caller, p peer) error {
	a.cfg.Metrics.Polled(p.facts.NotAfter.Sub(a.cfg.Now()))
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.Polled(ctx, c)
}

// park waits for a task until the poll's time ends, the server shuts down or
// the caller is refused. It runs on the request's own goroutine and one timer.
func (a *API) park(w http.ResponseWriter, r *http.Request, c Caller, q poll, wake <-chan struct{}) error {
	end := time.Now().Add(q.timeout)
	timer := time.NewTimer(a.cfg.Recheck)
	defer timer.Stop()
	for {
		offer, err := a.next(r.Context(), c, q.have)
		if err != nil {
			return err
		}
		if offer != nil {
			a.cfg.Metrics.Offered(offer)
			return edge.JSON(w, http.StatusOK, offer)
		}
		rest := time.Until(end)
		if rest <= 0 {
			return edge.NoContent(w)
		}
		timer.Reset(min(rest, a.cfg.Recheck))
		select {
		case <-wake:
		case <-timer.C:
		case <-a.closing:
			w.Header().Set("Connection", "close")
			return edge.NoContent(w)
		case <-r.Context().Done():
			return r.Context().Err()
		}
		if c, err = a.authenticate(r); err != nil {
			return err
		}
	}
}

func (a *API) next(ctx context.Context, c Caller, have []string) (*schema.TaskOffer, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.NextTask(ctx, c, schema.TaskAsk{Have: have}, schema.TaskLease)
}
