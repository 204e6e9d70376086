package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/agent/verify"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// errEarly is a poll that ended at once without a task: the server is shutting
// down, and polling without a pause would be a busy loop.
var errEarly = errors.New("the server ended the poll early")

// work maintains the identity and polls for tasks until ctx ends or the node is
// removed. It logs errors and retries after a delay that doubles from half a second to
// a minute.
func (a *Agent) work(ctx context.Context) error {
	retry := wait.Backoff{Range: a.timing.poll}
	for ctx.Err() == nil {
		out := a.ReconcileIdentity(ctx)
		if out.Removed {
			return apierror.ErrRemoved
		}
		a.lastLoop.Store(a.now().UnixNano())
		if !out.Ready {
			a.deps.Clock.Sleep(ctx, min(out.Wait, a.timing.rest)) //nolint:errcheck // the loop's condition looks at ctx
			continue
		}
		a.resume(ctx)
		again, err := a.poll(ctx)
		if err == nil {
			retry.Reset()
		} else if !again {
			a.deps.Clock.Sleep(ctx, retry.Next()) //nolint:errcheck // the loop's condition looks at ctx
		}
	}
	return ctx.Err()
}

// poll makes one poll with the identity in use, starts the task of the answer, and
// reports the outcome to the identity manager. again is true if the next pass should
// follow at once, because the identity's state changed.
func (a *Agent) poll(ctx context.Context) (again bool, err error) {
	err = a.pollOnce(ctx)
	if ctx.Err() != nil || errors.Is(err, errChanged) {
		return true, ctx.Err()
	}
	accepted := err
	if errors.Is(err, errEarly) {
		accepted = nil // the server accepted the identity
	}
	a.notePoll(accepted)
	if err != nil && !apierror.IsRemoved(err) { // the manager logs that once
		logPoll(a.log, a.identity.Current(), err)
	}
	return a.identity.Observe(accepted), err
}

// notePoll stores the outcome for the status command.
func (a *Agent) notePoll(err error) {
	s := PollStatus{At: a.now().UTC(), OK: err == nil, PID: os.Getpid(), Version: version.Version()}
	if err != nil {
		s.Error = text.Truncate(err.Error())
	}
	if err = a.state.Hint("poll.json", s); err != nil {
		a.log.Warn("cannot write the status file", "err", err.Error())
	}
	a.doubt = err != nil
}

// pollOnce sends one long poll and handles the response.
func (a *Agent) pollOnce(ctx context.Context) error {
	v, api := a.identity.Current(), a.api()
	if v == nil || api == nil {
		return identity.ErrNone
	}
	if a.reread.CompareAndSwap(true, false) {
		if err := a.connect(); err != nil {
			a.log.Error("cannot load the CA bundle, the one in use is kept", "err", err.Error())
		}
		api = a.api()
	}
	a.checkJournal()
	set := a.sets.Current().Ref()
	q := wire.PollRequest{
		HeldTasks: a.journal.Held(), AgentSession: a.session, Nonce: verify.NewNonce(), PollSeq: a.polls.Add(1), VerifierSet: set.Version, VerifierSetHash: set.Hash,
		NodeCABundle: nodeBundleDigest(a),
		Floors:       task.Floors{TaskSeq: a.journal.SeqFloor(), IdentitySequence: a.identity.Sequence()}, AuditCheckpoint: a.kept.text}
	timeout, begun, before := a.identity.PollTimeout(v), time.Now(), a.clock.Now()
	if q.PollSeq == 1 && a.upgrade.OnTrial() {
		timeout = 0 // the answer ends the trial
	}
	got, err := a.send(ctx, api, timeout, q)
	if !errors.Is(err, errChanged) && ctx.Err() == nil {
		a.upgrade.Polled(err)
	}
	if err != nil {
		return err
	}
	a.sets.Clock.Compare(a.clock.Now())
	// First, because the rest may take long.
	fresh := a.tasks.ReportProgressOf(got.CanceledTasks)
	a.kept.keep(got.AuditCheckpoint, got.ReplaceCheckpoint)
	a.sets.Follow(ctx, got.VerifierSet, api.VerifierSets)
	repairBundle(ctx, a, v)
	now := a.sets.Clock.Now()
	if err := a.journal.Prune(now); err != nil {
		a.log.Error("journal not pruned", "err", err.Error())
	}
	a.sets.WarnExpired(now)
	if got.Offer == nil {
		a.log.Info("poll ended without a task", "held", len(q.HeldTasks))
		if !fresh && timeout >= time.Second && time.Since(begun) < timeout/4 {
			return errEarly
		}
		return nil
	}
	a.clock.Observe(got.Offer.ServerTime)
	check := verify.Verifier{ID: v.ID, Set: a.sets.Current(), Nonce: q.Nonce, Clock: a.sets.Clock, Server: before, Known: a.journal.Holds}
	return a.tasks.Offer(ctx, check.Verify, *got.Offer)
}

// checkJournal makes the next poll report that the journal cannot be written, or again
// can: without it the agent accepts no task, and the server would dispatch each one again
// and again.
func (a *Agent) checkJournal() {
	fault := ""
	if err := a.journal.Fault(a.doubt); err != nil {
		fault = err.Error()
		if disk.Full(err) {
			fault = "disk_full: " + fault
		}
		fault = text.Printable(fault, wire.MaxFault)
		a.log.Error("the state folder cannot be written, no tasks are accepted", "err", fault)
	}
	if fault == "" {
		if err := a.state.KeepBallast(); err != nil {
			a.log.Warn("cannot reserve space on the disk for the agent's state", "err", err.Error())
		}
	}
	if fault != a.fault {
		a.fault = fault
		a.change()
	}
}

// sessionName identifies this process to the server: the machine's boot and the
// process's start, without characters that a session's name may not hold, and a random
// part, since a copy of the machine may start in the same second.
func sessionName(bootID string, started time.Time) string {
	boot := regexp.MustCompile(`[^A-Za-z0-9._-]`).ReplaceAllString(bootID, "")
	return boot[:min(len(boot), maxBootID)] + "-" + strconv.FormatInt(started.Unix(), 10) + "-" + rand.Text()[:10]
}

// maxBootID bounds the boot ID in a session, which has at most 128 characters.
const maxBootID = 100

// logPoll logs why a poll failed.
func logPoll(log *slog.Logger, v *identity.Version, err error) {
	e := schema.AsError(err)
	args := []any{"code", string(e.Kind), "reason", e.Reason, "err", err.Error()}
	if v != nil {
		args = append(args, "serial", v.Facts.Serial, "issuer", v.Facts.Issuer, "not_after", v.Facts.NotAfter)
	}
	switch {
	case errors.Is(err, errEarly):
		log.Info("poll is repeated after a pause")
	case e.Kind == schema.KindInvalidNodeIdentity || e.Kind == schema.KindUnauthenticated:
		log.Error("poll rejected: the server does not accept this identity", args...)
	case e.Kind == schema.KindTaskRefused:
		log.Warn("polling continues after a refused task", args...)
	default:
		log.Warn("poll failed", args...)
	}
}
