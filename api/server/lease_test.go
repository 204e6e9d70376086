package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// holding is a task that was dispatched to two processes with one identity: the
// first stopped polling, and the second got the next lease.
type holding struct {
	c        *cluster
	replicas [2]*replica
	m        machine
	taskID   string
}

func (c *cluster) heldTwice(r [2]*replica, m machine) holding {
	c.tb.Helper()
	taskID, attach := r[0].task(m)
	attach()
	h := holding{c, r, m, taskID}
	require.EqualValues(c.tb, 1, h.take(0, "boot-1").Lease.Epoch)
	c.exec(fmt.Sprintf("UPDATE node_tasks SET lease_until = now() - interval '1 second' WHERE task_id = '%s'", taskID))
	require.EqualValues(c.tb, 2, h.take(1, "boot-2").Lease.Epoch)
	return h
}

// take polls one replica as a process with an empty journal.
func (h holding) take(replica int, holder string) (offer wire.TaskOffer) {
	h.c.tb.Helper()
	r := h.replicas[replica]
	poll := pollRequest(5 * time.Second)
	poll.AgentSession = holder
	a := r.call(r.client(h.m.cert), http.MethodPost, r.url(h.m, "/tasks/wait"), poll)
	require.Equal(h.c.tb, http.StatusOK, a.status, string(a.body))
	a.into(h.c.tb, &offer)
	require.Equal(h.c.tb, h.taskID, offer.TaskID)
	return offer
}

// post sends a progress report or a result and returns whether it was accepted. A
// refusal must be for the lease.
func (h holding) post(replica int, what string, body any) bool {
	h.c.tb.Helper()
	r := h.replicas[replica]
	a := r.call(r.client(h.m.cert), http.MethodPost, r.url(h.m, "/tasks/"+h.taskID+"/"+what), body)
	if a.status/100 == 2 {
		return true
	}
	require.Equal(h.c.tb, http.StatusConflict, a.status, string(a.body))
	require.Equal(h.c.tb, schema.KindLeaseLost, a.refusal(h.c.tb).Code)
	return false
}

// audited counts the task's audit events by action.
func (h holding) audited() (count map[string]int, holders []string) {
	h.c.tb.Helper()
	events, err := h.replicas[0].store.Admin.AuditStream(h.c.tb.Context(), h.m.id, 0, 10_000)
	require.NoError(h.c.tb, err)
	require.NoError(h.c.tb, audit.VerifyChain(nil, events))
	count = map[string]int{}
	for _, e := range events {
		if e.Target != h.taskID {
			continue
		}
		count[e.Action]++
		if e.Action == audit.TaskDispatched {
			holders = append(holders, e.Detail["lease"]+" "+e.Detail["holder"])
		}
	}
	return count, holders
}

func (h holding) messages() (n int) {
	h.c.tb.Helper()
	messages, err := h.replicas[0].store.Tasks.Outbox(h.replicas[0].listener).Take(h.c.tb.Context(), 1000, nil)
	require.NoError(h.c.tb, err)
	for _, m := range messages {
		if m.Result != nil && m.Result.TaskID == h.taskID {
			n++
		}
	}
	return n
}

// report is a result that names its sender.
func (h holding) report(epoch int64, by string, at time.Time) task.Result {
	return task.Result{LeaseEpoch: epoch, Status: task.Succeeded, Message: h.taskID, StartedAt: at, FinishedAt: at,
		Output: json.RawMessage(fmt.Sprintf(`{"healthy":true,"checks":[],"boot_id":%q}`, by))}
}

// Two processes hold one task, and their requests arrive late, twice, in any order
// and through any replica. The first result under the newest lease is the outcome.
// The audit names both holders and every refusal.
func TestOneOutcomeInAnyOrder(t *testing.T) {
	c := newCluster(t)
	replicas := [2]*replica{c.replica(), c.replica()}
	m := replicas[0].enrolled()
	for seed := range uint64(20) {
		h, draw := c.heldTwice(replicas, m), rand.New(rand.NewPCG(seed, 0))
		at := time.Now().UTC().Truncate(time.Second)
		old, young, twin := h.report(1, "old", at), h.report(2, "young", at), h.report(2, "twin", at)
		outcome, late := "", 0
		result := func(r task.Result, by string) func() {
			return func() {
				taken := h.post(draw.IntN(2), "result", r)
				if taken && outcome == "" {
					outcome = by
				}
				require.Equal(t, r.LeaseEpoch == 2 && outcome == by, taken, "seed %d: the result of %s, the outcome is of %q", seed, by, outcome)
				if !taken {
					late++
				}
			}
		}
		progress := func(epoch int64) func() {
			return func() {
				taken := h.post(draw.IntN(2), "progress", task.Progress{LeaseEpoch: epoch})
				require.Equal(t, epoch == 2 && outcome == "", taken, "seed %d: progress under lease %d, the outcome is of %q", seed, epoch, outcome)
			}
		}
		requests := []func(){result(old, "old"), result(old, "old"), result(young, "young"), result(young, "young"), result(twin, "twin"),
			result(twin, "twin"), progress(1), progress(2), progress(2)}
		draw.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
		for _, send := range requests {
			send()
		}

		a := replicas[draw.IntN(2)].ask(http.MethodGet, "/tasks/"+h.taskID, nil)
		var view wire.TaskView
		a.into(t, &view)
		require.Equal(t, task.Succeeded, view.Status)
		require.EqualValues(t, 2, view.Attempts)
		require.Equal(t, "boot-2", view.Holder)
		require.Contains(t, string(view.Result.Output), outcome)
		count, holders := h.audited()
		require.Equal(t, map[string]int{audit.TaskCreated: 1, audit.TaskDispatched: 2, audit.TaskFinished: 1,
			audit.TaskLate: min(late, 1)}, count, "refusals of one task are audited once a minute")
		require.Equal(t, []string{"1 boot-1", "2 boot-2"}, holders)
		require.Equal(t, 1, h.messages(), "one completion for Temporal")
	}
}
