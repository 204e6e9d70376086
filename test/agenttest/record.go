package agenttest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Record holds the requests that an API received. Mu guards its fields.
type Record struct {
	T testing.TB

	Mu         sync.Mutex
	cond       *sync.Cond
	requests   []string
	Counts     map[string]int
	spkis      []string
	Results    []postedResult
	Signers    []string // serials of who signed a result, in their order
	Heartbeats []wire.Heartbeat
	Haves      []string // HeldTasks of each poll, separated by commas
	Numbers    []int64  // of the polls
	Open       int      // polls being answered
	tries      map[string]int
	sent       sentOffer
	faulty     bool // the last heartbeat reported a fault
}

// sentOffer is an offer that a poll was answered with, and the number of result calls
// for its task until then.
type sentOffer struct {
	wire.TaskOffer
	tries int
	again bool
}

// unreceived returns the latest offer if the agent did not receive it: the poll that
// it answered had ended, and the server did not know yet. As the node API does, the
// next poll offers such a task again, here once.
func (f *Record) unreceived(held []string) *wire.TaskOffer {
	sent := f.sent
	f.sent = sentOffer{}
	if sent.again || !schema.IsID(sent.TaskID) || slices.Contains(held, sent.TaskID) || f.tries[sent.TaskID] > sent.tries {
		return nil
	}
	return &sent.TaskOffer
}

type postedResult struct {
	taskID string
	task.Result
}

func (f *Record) Note(change func()) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	change()
	f.cond.Broadcast()
}

// waitLimit bounds each wait of a test. A busy machine may be slow.
const waitLimit = 2 * time.Minute

// Until waits for a condition over the fields that Mu guards.
func (f *Record) Until(what string, ok func() bool) {
	f.T.Helper()
	timer := time.AfterFunc(waitLimit, func() { f.Note(func() {}) })
	defer timer.Stop()
	end := time.Now().Add(waitLimit)
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for !ok() {
		if time.Now().After(end) {
			f.T.Fatalf("never happened: %s", what)
		}
		f.cond.Wait()
	}
}

// Result waits for the result of a task.
func (f *Record) Result(taskID string) (r task.Result) {
	f.T.Helper()
	f.Until("result of "+taskID, func() bool {
		for _, p := range f.Results {
			if p.taskID == taskID {
				r = p.Result
				return true
			}
		}
		return false
	})
	return r
}

func (f *Record) Count(what string) int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Counts[what]
}

// Deserted waits until no poll of a stopped agent is left that could take an
// offer with it.
func (f *Record) Deserted() { f.Until("the end of all polls", func() bool { return f.Open == 0 }) }

// Seen returns every request so far.
func (f *Record) Seen() []string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.Clone(f.requests)
}

// Keys is the key of every enrollment so far.
func (f *Record) Keys() []string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.Clone(f.spkis)
}

// Polls waits until the agent polled, which needs an identity.
func (f *Record) Polls() { f.Until("a poll", func() bool { return f.Counts["wait"] > 0 }) }
