package nodeapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

// wait is the long poll. It subscribes before it looks, so that no wake is lost
// between the two, and before it reads the node's row, so that a fence is not
// lost either. Every wake checks the identity again.
func (a *API) wait(w http.ResponseWriter, r *http.Request) error {
	p, err := a.identify(r)
	if err != nil {
		return err
	}
	wake, unsubscribe := a.cfg.Wakes.Subscribe(p.id.NodeID, p.id.Incarnation)
	defer unsubscribe()
	c, err := a.admit(r, p)
	if err != nil {
		return err
	}
	q, err := parsePoll(r.URL.Query())
	if err != nil {
		return err
	}
	edge.Annotate(r.Context(), slog.String("holder", q.ask.Holder), slog.Int64("verifier_set", q.set))
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
	for woken := false; ; {
		offer, mended, err := a.handOut(r.Context(), c, q.ask)
		if err != nil {
			return err
		}
		if offer != nil {
			a.cfg.Metrics.Offered(offer)
			a.nameSet(r.Context(), w)
			return edge.JSON(w, http.StatusOK, offer)
		}
		if woken {
			if told, err := a.tellNews(w, r, c, q.ask.Have); told || err != nil {
				return err
			}
		}
		rest := time.Until(end)
		if rest <= 0 {
			return a.nothing(w, r)
		}
		timer.Reset(min(rest, a.cfg.Recheck))
		woken = false
		select {
		case <-wake:
			woken = true
		case <-mended:
		case <-timer.C:
		case <-a.closing:
			w.Header().Set("Connection", "close")
			return a.nothing(w, r)
		case <-r.Context().Done():
			return r.Context().Err()
		}
		if c, err = a.authenticate(r); err != nil {
			return err
		}
	}
}

// tellNews ends a poll that was woken when a task that the node holds is not
// wanted any more. Only a wake does so: what was told once stays true until the
// agent's result, and would end each poll at once. A wake that comes between two
// polls is lost; then the agent hears of it with its next progress.
func (a *API) tellNews(w http.ResponseWriter, r *http.Request, c Caller, have []string) (told bool, err error) {
	if len(have) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	news, err := a.cfg.Store.TaskNews(ctx, c, have)
	if err != nil || len(news) == 0 {
		return false, err
	}
	w.Header().Set(schema.HeaderTaskNews, strings.Join(news, ","))
	return true, a.nothing(w, r)
}

// nothing answers a poll that nothing came for.
func (a *API) nothing(w http.ResponseWriter, r *http.Request) error {
	a.nameSet(r.Context(), w)
	return edge.NoContent(w)
}
