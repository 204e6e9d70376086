package nodeapi

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// visit is a poll that was let in. It is kept off the stack of its goroutine: a
// parked poll's stack is half as large when little of it is used, and every node
// has one.
type visit struct {
	caller Caller
	poll   poll
	wake   <-chan struct{}
	// news is set when a wake came: somebody may have changed their mind.
	news bool
}

// wait is the long poll.
func (a *API) wait(w http.ResponseWriter, r *http.Request) error {
	v, leave, err := a.enter(r)
	defer leave()
	if err != nil {
		return err
	}
	defer a.cfg.Metrics.PollOpened()()
	return a.park(w, r, v)
}

// enter subscribes before it reads the node's row, which says whether there is a
// task to look for, so that no wake is lost between the two, and no fence either.
// The caller calls leave, also after an error.
func (a *API) enter(r *http.Request) (v *visit, leave func(), err error) {
	p, err := a.identify(r)
	if err != nil {
		return nil, func() {}, err
	}
	v = &visit{}
	v.wake, leave = a.cfg.Notifier.Subscribe(p.id.NodeID, p.id.Incarnation)
	if v.caller, err = a.admit(r, p); err != nil {
		return nil, leave, err
	}
	if v.poll, err = parsePoll(r.URL.Query()); err != nil {
		return nil, leave, err
	}
	edge.Annotate(r.Context(), slog.String("holder", v.poll.ask.Holder), slog.Int64("verifier_set", v.poll.set))
	return v, leave, a.polled(r.Context(), v, p)
}

func (a *API) polled(ctx context.Context, v *visit, p peer) error {
	a.cfg.Metrics.Polled(p.facts.NotAfter.Sub(a.cfg.Now()))
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.RecordPoll(ctx, v.caller, v.poll.set)
}

// park waits for a task until the poll's time ends, the server shuts down or
// the caller is refused. It runs on the request's own goroutine and one timer.
// Every wake checks the identity again.
func (a *API) park(w http.ResponseWriter, r *http.Request, v *visit) error {
	end := endOf(time.Now(), v.poll.timeout)
	timer := time.NewTimer(a.cfg.Recheck)
	defer timer.Stop()
	for {
		answered, mended, err := a.look(w, r, v)
		if answered || err != nil {
			return err
		}
		rest := time.Until(end)
		if rest <= 0 {
			return a.nothing(w, r)
		}
		timer.Reset(min(rest, a.cfg.Recheck))
		v.news = false
		select {
		case <-v.wake:
			v.news = true
		case <-mended:
		case <-timer.C:
			if time.Until(end) <= 0 {
				return a.nothing(w, r) // the next poll looks
			}
		case <-a.closing:
			w.Header().Set("Connection", "close")
			return a.nothing(w, r)
		case <-r.Context().Done():
			return r.Context().Err()
		}
		if err := a.again(r, v); err != nil {
			return err
		}
	}
}

// tick is the grid on which polls end. Those of many nodes then end, and are
// followed by heartbeats and new polls, in a few bursts a second: a process that is
// woken for each by itself spends more time on waking than on them.
const tick = 250 * time.Millisecond

// endOf is when a poll that begins now ends: up to a fifth early, so that the polls
// of a fleet that came all at once, after a restart of the API, do not end all at
// once for ever; and on the grid where the poll is long enough.
func endOf(now time.Time, timeout time.Duration) time.Time {
	end := now.Add(timeout - time.Duration(rand.Int64N(int64(timeout/5)+1))) //nolint:gosec // spreading load needs no secret
	if early := time.Duration(end.UnixNano() % int64(tick)); timeout > 10*tick {
		return end.Add(-early)
	}
	return end
}

// look answers the poll when there is something to answer; mended is closed when
// it is time to look again where nothing could be granted.
func (a *API) look(w http.ResponseWriter, r *http.Request, v *visit) (answered bool, mended <-chan struct{}, err error) {
	offer, mended, err := a.handOut(r.Context(), v.caller, v.poll.ask)
	if err != nil {
		return false, nil, err
	}
	if offer != nil {
		a.cfg.Metrics.Offered(offer)
		a.nameSet(r.Context(), w)
		return true, nil, edge.JSON(w, http.StatusOK, offer)
	}
	if v.news {
		answered, err = a.tellNews(w, r, v.caller, v.poll.ask.Have)
	}
	return answered, mended, err
}

// again checks the identity of a poll that waited, and so whether a task waits.
func (a *API) again(r *http.Request, v *visit) (err error) {
	v.caller, err = a.authenticate(r)
	return err
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
	news, err := a.cfg.Store.CanceledTasks(ctx, c, have)
	if err != nil || len(news) == 0 {
		return false, err
	}
	w.Header().Set(wire.HeaderCanceledTasks, strings.Join(news, ","))
	return true, a.nothing(w, r)
}

// nothing answers a poll that nothing came for.
func (a *API) nothing(w http.ResponseWriter, r *http.Request) error {
	a.nameSet(r.Context(), w)
	return edge.NoContent(w)
}
