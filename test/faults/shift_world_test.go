package faults_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
)

// party is a part of the world that can be unavailable.
type party string

const (
	theDatabase party = "database"
	theVault    party = "Vault"
	theProvider party = "provider"
	theNode     party = "node"
	theRelay    party = "relay"
)

// outage is a time in which a party does not respond.
type outage struct{ from, to time.Time }

const (
	// storm is how long faults happen after the start of a shift.
	storm    = 24 * time.Hour
	provider = "virtual"
)

// shiftWorld is what the workflows' activities reach: the store's rules, a provider, a signer, and
// the faults. Activities run in goroutines of their own.
type shiftWorld struct {
	*storetest.Store
	seed uint64

	mu       sync.Mutex
	clock    func() time.Time
	start    time.Time
	outages  map[party][]outage
	draws    map[string]uint64
	hits     map[string]int
	trace    []string
	machines map[string]bool // by resource
	enqueued func(taskID string)
	onAt     time.Time // when the machine that restarts has booted
	// restarted is called when something restarts the machine.
	restarted func(by string)
}

func newShiftWorld(seed uint64, start time.Time) *shiftWorld {
	w := &shiftWorld{seed: seed, start: start, draws: map[string]uint64{}, hits: map[string]int{}, machines: map[string]bool{},
		outages: map[party][]outage{}, clock: func() time.Time { return start }}
	w.Store = storetest.NewStore(w.now)
	w.Creating = []string{provider}
	r := w.random("outages")
	for _, p := range []party{theDatabase, theVault, theProvider, theNode, theRelay} {
		for range r.IntN(3) {
			from := start.Add(upToLog(r, storm/2))
			w.outages[p] = append(w.outages[p], outage{from, from.Add(upToLog(r, storm/3))})
		}
		for range r.IntN(6) {
			from := start.Add(time.Duration(r.Int64N(int64(storm / 2))))
			w.outages[p] = append(w.outages[p], outage{from, from.Add(upToLog(r, 20*time.Minute))})
		}
	}
	return w
}

// upToLog returns a random duration from a second to most, whose logarithm is uniform.
func upToLog(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(float64(time.Second) * math.Exp(r.Float64()*math.Log(most.Seconds())))
}

func (w *shiftWorld) now() time.Time {
	w.mu.Lock()
	clock := w.clock
	w.mu.Unlock()
	return clock().UTC().Truncate(time.Microsecond)
}

func (w *shiftWorld) calm() bool { return w.now().Sub(w.start) > storm }

// random returns the random numbers of a thing that happens for the nth time. They do not
// depend on what happens at the same time elsewhere.
func (w *shiftWorld) random(name string) *rand.Rand {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draws[name]++
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()^w.draws[name]))
}

// away returns when the party responds again, and whether it does not respond now.
func (w *shiftWorld) away(p party) (until time.Time, away bool) {
	now := w.now()
	for _, o := range w.outages[p] {
		if now.After(o.from) && now.Before(o.to) && o.to.After(until) {
			until, away = o.to, true
		}
	}
	return until, away
}

func (w *shiftWorld) hit(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits[what]++
}

func (w *shiftWorld) logf(format string, args ...any) {
	at := w.now().Sub(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf("%-14s ", at.Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// call is a call of a party. It may fail before or after its effect.
func (w *shiftWorld) call(p party, name string, do func() error) error {
	if _, away := w.away(p); away {
		w.hit(string(p) + " away")
		return schema.NewError(schema.KindServiceUnavailable, "the %s is unavailable", p)
	}
	if w.calm() {
		return do()
	}
	switch r := w.random(name); r.IntN(60) {
	case 0, 1:
		w.hit("call failed")
		return schema.NewError(schema.KindServiceUnavailable, "%s failed", name)
	case 2, 3:
		if err := do(); err != nil {
			return err
		}
		w.hit("response lost")
		return schema.NewError(schema.KindServiceUnavailable, "the response of %s is lost", name)
	case 4:
		w.hit("internal error")
		return schema.NewError(schema.KindInternal, "%s failed", name)
	case 5, 6, 7:
		if p != theProvider {
			break
		}
		w.hit("provider rejects")
		kinds := []schema.Kind{schema.KindInvalidRequest, schema.KindRateLimited, schema.KindUnfit, schema.KindNotFound, schema.KindForbidden,
			schema.KindAgentSilent, schema.KindTaskFailed}
		return schema.NewError(kinds[r.IntN(len(kinds))], "%s rejected", name)
	}
	return do()
}

func callFor[T any](w *shiftWorld, p party, name string, do func() (T, error)) (out T, err error) {
	err = w.call(p, name, func() error { out, err = do(); return err })
	if err != nil {
		var none T
		return none, err
	}
	return out, nil
}

// Claim implements activities.Records, as do the methods below, with faults.
func (w *shiftWorld) Claim(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	return callFor(w, theDatabase, "claim", func() (activities.Claim, error) { return w.Store.Claim(ctx, r) })
}

func (w *shiftWorld) Advance(ctx context.Context, f activities.Fence, runID string, a activities.Advance) error {
	return w.call(theDatabase, "advance", func() error {
		if a.Stuck != nil {
			w.logf("parked in %s: %s (%s)", a.Stuck.Phase, a.Stuck.Reason, a.Stuck.Message)
		}
		return w.Store.Advance(ctx, f, runID, a)
	})
}

func (w *shiftWorld) Finish(ctx context.Context, f activities.Fence, runID string, e activities.Finish) error {
	return w.call(theDatabase, "finish", func() error { return w.Store.Finish(ctx, f, runID, e) })
}

func (w *shiftWorld) Enrollment(ctx context.Context, id string) (activities.Enrollment, error) {
	return callFor(w, theDatabase, "enrollment", func() (activities.Enrollment, error) { return w.Store.Enrollment(ctx, id) })
}

func (w *shiftWorld) Registration(ctx context.Context, id string) (activities.Registration, error) {
	return callFor(w, theDatabase, "registration", func() (activities.Registration, error) { return w.Store.Registration(ctx, id) })
}

func (w *shiftWorld) HeartbeatAge(ctx context.Context, id string) (time.Duration, error) {
	w.heartbeat(id)
	return callFor(w, theDatabase, "heartbeat", func() (time.Duration, error) { return w.Store.HeartbeatAge(ctx, id) })
}

func (w *shiftWorld) Prepare(ctx context.Context, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	return callFor(w, theDatabase, "prepare", func() (activities.TaskRow, error) { return w.Store.Prepare(ctx, t, o) })
}

func (w *shiftWorld) Enqueue(ctx context.Context, t activities.TaskSpec, o task.Owner, row activities.TaskRow, envelope []byte) error {
	return w.call(theDatabase, "enqueue", func() error {
		err := w.Store.Enqueue(ctx, t, o, row, envelope)
		if err == nil {
			w.enqueued(row.TaskID)
		}
		return err
	})
}

func (w *shiftWorld) Find(ctx context.Context, t activities.TaskSpec) (activities.TaskRow, error) {
	return callFor(w, theDatabase, "find", func() (activities.TaskRow, error) { return w.Store.Find(ctx, t) })
}

func (w *shiftWorld) First(ctx context.Context, f activities.Fence, t task.Type) (activities.TaskRow, error) {
	return callFor(w, theDatabase, "first", func() (activities.TaskRow, error) { return w.Store.First(ctx, f, t) })
}

func (w *shiftWorld) Void(ctx context.Context, f activities.Fence) error {
	return w.call(theDatabase, "void", func() error { return w.Store.Void(ctx, f) })
}

func (w *shiftWorld) VoidUndispatched(ctx context.Context, f activities.Fence, step string) (bool, error) {
	return callFor(w, theDatabase, "void undispatched", func() (bool, error) { return w.Store.VoidUndispatched(ctx, f, step) })
}

func (w *shiftWorld) Plan(ctx context.Context, f activities.Fence, r activities.Resource) (activities.Resource, error) {
	return callFor(w, theDatabase, "plan", func() (activities.Resource, error) { return w.Store.Plan(ctx, f, r) })
}

func (w *shiftWorld) Created(ctx context.Context, f activities.Fence, id, externalID string) error {
	return w.call(theDatabase, "created", func() error { return w.Store.Created(ctx, f, id, externalID) })
}

func (w *shiftWorld) Released(ctx context.Context, f activities.Fence, id string) error {
	return w.call(theDatabase, "released", func() error { return w.Store.Released(ctx, f, id) })
}

func (w *shiftWorld) Open(ctx context.Context, f activities.Fence) ([]activities.Resource, error) {
	return callFor(w, theDatabase, "ledger", func() ([]activities.Resource, error) { return w.Store.Open(ctx, f) })
}

// Sign implements activities.Signer.
func (w *shiftWorld) Sign(_ context.Context, payload []byte) ([]byte, error) {
	return payload, w.call(theVault, "sign", func() error { return nil })
}

// shiftProvider is the provider of a shiftWorld.
type shiftProvider struct{ *shiftWorld }

func (p shiftProvider) Create(_ context.Context, s machines.Spec, _ activities.BootData) (machines.Machine, error) {
	err := p.call(theProvider, "create", func() error {
		p.setMachine(s.InstanceID, true)
		p.enroll(s.NodeID)
		return nil
	})
	return machines.Machine{Ref: machines.Ref{InstanceID: s.InstanceID, ExternalID: s.Host}, Phase: machines.Running}, err
}

func (p shiftProvider) Describe(_ context.Context, r machines.Ref) (machines.Machine, error) {
	err := p.call(theProvider, "describe", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.machines[r.InstanceID] {
			return machines.Errorf(machines.ReasonMissing, "no machine")
		}
		return nil
	})
	return machines.Machine{Ref: r, Phase: machines.Running}, err
}

func (p shiftProvider) Power(_ context.Context, r machines.Ref, to machines.Power) error {
	return p.call(theProvider, "power", func() error {
		p.mu.Lock()
		exists := p.machines[r.InstanceID]
		p.mu.Unlock()
		if !exists {
			return machines.Errorf(machines.ReasonMissing, "no machine")
		}
		if to == machines.PowerReset {
			p.restarted("the provider")
		}
		return nil
	})
}

func (p shiftProvider) Console(context.Context, machines.Ref) ([]byte, error) { return nil, nil }

func (p shiftProvider) Delete(_ context.Context, r machines.Ref) error {
	return p.call(theProvider, "delete", func() error { p.setMachine(r.InstanceID, false); return nil })
}

func (p shiftProvider) List(context.Context) ([]machines.Machine, error) { return nil, nil }

// enroll is what the agent of a new machine does, unless the node is enrolled.
func (w *shiftWorld) enroll(nodeID string) {
	if w.Node(nodeID).State.Enrolled() {
		return
	}
	w.IssueBundle(nodeID, false)
	w.ClaimToken(nodeID)
	w.Poll(nodeID)
}

func (w *shiftWorld) setMachine(id string, exists bool) {
	w.logf("machine %.8s exists: %t", id, exists)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.machines[id] = exists
}

// unowned returns the machines that exist and that no ledger lists.
func (w *shiftWorld) unowned(nodeID string) (ids []string) {
	open := w.Resources(nodeID)
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, exists := range w.machines {
		if exists && !slices.ContainsFunc(open, func(r activities.Resource) bool { return r.ResourceID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

var (
	_ activities.Records         = (*shiftWorld)(nil)
	_ activities.Tasks           = (*shiftWorld)(nil)
	_ activities.Ledger          = (*shiftWorld)(nil)
	_ activities.Repairs         = (*shiftWorld)(nil)
	_ activities.MachineProvider = shiftProvider{}
)
