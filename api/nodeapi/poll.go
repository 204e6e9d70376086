package nodeapi

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// poller serves polls and dispatches tasks to them.
type poller struct {
	cfg *Config
	*authenticator
	// closing is closed when the server shuts down.
	closing chan struct{}
}

// openPoll is an admitted poll. It lives on the heap: every node has a parked
// poll, and a poll that uses little of its goroutine's stack halves its memory.
type openPoll struct {
	caller  Caller
	request wire.PollRequest
	wake    <-chan struct{}
	// woken is true after a notification, and only then are cancellations read.
	woken bool
	// superseded is closed when newer polls of the node end this one.
	superseded <-chan struct{}
	// until is when the poll ends, replaced is closed when a newer verifier set ends it sooner.
	until    time.Time
	replaced <-chan struct{}
}

// wait is the long poll for a task. A request without a body is a probe.
//
// A malformed body, heartbeat included, records nothing. The response names the field,
// so the fault is visible in the log of the agent. The agent then omits the heartbeat
// from its next poll: the node receives tasks, such as a drain, and counts as silent.
func (a *poller) wait(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return a.probe(w, r)
	}
	p := &openPoll{}
	if err := edge.Decode(r, &p.request); err != nil {
		return err
	}
	if err := p.request.Validate(); err != nil {
		return err
	}
	slot := pollSlotOf(r)
	p.superseded = slot.open()
	unsubscribe, err := a.admit(w, r, p)
	defer unsubscribe()
	if err != nil {
		return err
	}
	slot.begun()
	defer a.cfg.Metrics.PollOpened()()
	return a.awaitTask(w, r, p)
}

// probe authenticates the caller and returns 204. It dispatches nothing, so an
// operator may test a node's identity with curl.
func (a *poller) probe(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.authenticate(r); err != nil {
		return err
	}
	return a.writeNoContent(w, r)
}

// admit authenticates the poll and records it with its heartbeat. It subscribes before it
// reads the node's row, so no task or fence between the two is missed. The caller must call
// unsubscribe, even after an error.
func (a *poller) admit(w http.ResponseWriter, r *http.Request, p *openPoll) (unsubscribe func(), err error) {
	peer, err := a.verifyPeer(r)
	if err != nil {
		return func() {}, err
	}
	p.wake, unsubscribe = a.cfg.Notifier.Subscribe(peer.id.NodeID, peer.id.Incarnation)
	if p.caller, err = a.loadCaller(r, peer); err != nil {
		return unsubscribe, err
	}
	a.withholdPoll(&p.request)
	edge.Annotate(r.Context(), slog.String("agent_session", p.request.AgentSession),
		slog.Int64("verifier_set", p.request.VerifierSet))
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	if err := a.cfg.Identities.RecordSession(ctx, p.caller, p.request); err != nil {
		return unsubscribe, a.refused(r, err)
	}
	if err := a.cfg.Identities.RecordPoll(ctx, p.caller, p.request); err != nil {
		return unsubscribe, err
	}
	a.compareCheckpoint(ctx, w, p)
	if h := p.request.Heartbeat; h != nil {
		if err := a.cfg.Heartbeats.Heartbeat(ctx, p.caller, *h); err != nil {
			return unsubscribe, a.refused(r, err)
		}
		p.request.Heartbeat = nil // an open poll keeps only what it needs
	}
	return unsubscribe, nil
}

// awaitTask tries to dispatch a task now and after every wake, until the poll's
// time ends, the server shuts down or the caller is rejected. It uses the
// request's own goroutine and one timer.
func (a *poller) awaitTask(w http.ResponseWriter, r *http.Request, p *openPoll) error {
	now := time.Now()
	p.until, p.replaced = pollEnd(now, p.request.Wait()), a.cfg.VerifierSets.Replaced()
	if set, err := a.cfg.VerifierSets.NewestSet(r.Context()); err == nil && p.request.VerifierSet > 0 && p.request.VerifierSet < set.Version {
		p.until = earlier(p.until, now.Add(rand.N(behindSpread))) //nolint:gosec // load spreading needs no secret
	}
	end := time.NewTimer(p.until.Sub(now))
	defer end.Stop()
	for {
		done, changed, err := a.tryDispatch(w, r, p)
		if done || err != nil {
			return err
		}
		if done, err := a.park(w, r, p, end, changed); done || err != nil {
			return err
		}
		if p.caller, err = a.authenticate(r); err != nil {
			return err
		}
		if p.caller.Contested && p.caller.Session != p.request.AgentSession {
			return a.writeNoContent(w, r) // a process that still runs polls again
		}
	}
}

// park waits until another try is due. done is true if it responded instead.
func (a *poller) park(w http.ResponseWriter, r *http.Request, p *openPoll, end *time.Timer, changed <-chan struct{}) (done bool, err error) {
	p.woken = false
	for {
		select {
		case _, confirmed := <-p.wake:
			if !confirmed {
				return false, schema.NewError(schema.KindServiceUnavailable, "this replica of the API cannot reach its database")
			}
			p.woken = true
			return false, nil
		case <-changed:
			return false, nil
		case <-p.replaced: // the response names the set, which may revoke a key
			p.replaced = nil
			end.Reset(min(time.Until(p.until), rand.N(setSpread))) //nolint:gosec // load spreading needs no secret
		case <-end.C:
			return true, a.writeNoContent(w, r) // the agent's next poll tries again
		case <-p.superseded:
			return true, a.writeNoContent(w, r) // the node has newer polls
		case <-a.closing:
			w.Header().Set("Connection", "close")
			return true, a.writeNoContent(w, r)
		case <-r.Context().Done():
			return false, r.Context().Err()
		}
	}
}

// tryDispatch responds with the node's next task, or with the cancellations of
// its held tasks. done is false if there is neither. changed is closed when
// another try is due because a lease grant can be signed again.
func (a *poller) tryDispatch(w http.ResponseWriter, r *http.Request, p *openPoll) (done bool, changed <-chan struct{}, err error) {
	d, changed, err := a.nextDispatch(r.Context(), p.caller, p.request)
	if err != nil {
		return false, nil, err
	}
	if d != nil {
		a.setVerifierSetHeader(r.Context(), w)
		return true, nil, edge.JSON(w, http.StatusOK, d.TaskOffer)
	}
	canceled, err := a.cancellations(r, p)
	if err != nil || len(canceled) == 0 {
		return false, changed, err
	}
	w.Header().Set(wire.HeaderCanceledTasks, strings.Join(canceled, ","))
	return true, nil, a.writeNoContent(w, r)
}

// cancellations returns the held tasks of a woken poll that were canceled. They
// stay canceled until the agent reports a result, so a poll that was not woken
// must not return them: it would end every poll at once. The agent learns of a
// cancellation between two polls from its next progress response.
func (a *poller) cancellations(r *http.Request, p *openPoll) ([]string, error) {
	if !p.woken || len(p.request.HeldTasks) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	return a.cfg.Tasks.CanceledTasks(ctx, p.caller, p.request.HeldTasks)
}

// writeNoContent responds with 204: no task.
func (a *poller) writeNoContent(w http.ResponseWriter, r *http.Request) error {
	a.setVerifierSetHeader(r.Context(), w)
	return edge.NoContent(w)
}
