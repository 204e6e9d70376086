package recovery_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// A world is a simulated fleet with the repairs that run on it. Its rounds check what must hold in
// every sequence of rounds.
type world struct {
	t       *testing.T
	policy  recovery.Policy
	at      time.Time
	nodes   []recovery.Node
	breaker recovery.BreakerState
	last    recovery.Result
	// repair returns how long a repair takes and how it ends.
	repair func(n recovery.Node, r recovery.Request) (time.Duration, string)
	ends   map[int]ending // by the node's number
	begun  []string       // hosts, in the order of the repairs
	out    int            // nodes that repairs quarantined
}

type ending struct {
	at      time.Time
	outcome string
}

func newWorld(t *testing.T, p recovery.Policy, nodes int) *world {
	t.Helper()
	w := &world{t: t, policy: p, at: now(), ends: map[int]ending{}}
	for i := range nodes {
		w.nodes = append(w.nodes, node(i))
	}
	w.repair = func(recovery.Node, recovery.Request) (time.Duration, string) {
		return 10 * time.Minute, recovery.OutcomeCured
	}
	return w
}

// fail gives a node a fault that begins now.
func (w *world) fail(i int, c health.Condition) {
	c.Since, c.Samples = w.at, 1
	w.nodes[i] = with(w.nodes[i], c)
}

// heal ends all faults of a node.
func (w *world) heal(i int) { w.nodes[i].Conditions = node(i).Conditions }

// fleet returns the facts of this round, as the store reads them.
func (w *world) fleet() recovery.Fleet {
	f := fleet(w.at, len(w.nodes))
	f.Breaker, f.Incidents = w.breaker, w.last.Incidents
	f.Sizes[0].Out = w.out
	for i, n := range w.nodes {
		if n.Phase != health.PhaseHealthy || len(n.Conditions) > 1 || n.NodeID == w.breaker.Probing {
			f.Nodes = append(f.Nodes, n)
		}
		if _, running := w.ends[i]; running {
			for s := range f.Sizes {
				if size := &f.Sizes[s]; size.Key == "" || size.Key == n.Rack || size.Key == n.SKU || size.Key == n.Region {
					size.Busy++
				}
			}
		}
	}
	return f
}

// round ends the repairs that are due, decides, starts the repairs, and moves the clock.
func (w *world) round(step time.Duration) recovery.Result {
	w.finish()
	f := w.fleet()
	w.last = recovery.Decide(w.policy, f)
	w.check(f)
	for _, d := range w.last.Decisions {
		i := w.number(d.Host)
		w.nodes[i].Phase = d.Phase
		if d.Acts() {
			w.begin(i, d)
		}
	}
	w.breaker = w.last.Breaker
	w.within()
	w.at = w.at.Add(step)
	for i := range w.nodes {
		for c := range w.nodes[i].Conditions {
			w.nodes[i].Conditions[c].Samples++
		}
	}
	return w.last
}

func (w *world) begin(i int, d recovery.Decision) {
	_, twice := w.ends[i]
	require.False(w.t, twice, "two repairs of %s at once", d.Host)
	after, outcome := w.repair(w.nodes[i], d.Request)
	w.ends[i] = ending{w.at.Add(after), outcome}
	w.begun = append(w.begun, d.Host)
	w.nodes[i].Attempts = append(slices.Clone(w.nodes[i].Attempts), recovery.Attempt{
		OperationID: fmt.Sprintf("op-%d", len(w.begun)), NodeID: d.NodeID, SKU: w.nodes[i].SKU,
		Rung: d.Rung, Fault: d.Fault, StartedAt: w.at,
	})
}

func (w *world) finish() {
	for i, e := range w.ends {
		if w.at.Before(e.at) {
			continue
		}
		attempts := slices.Clone(w.nodes[i].Attempts)
		last := &attempts[len(attempts)-1]
		last.EndedAt, last.Outcome = e.at, e.outcome
		w.nodes[i].Attempts = attempts
		if e.outcome == recovery.OutcomeCured {
			w.heal(i)
		}
		delete(w.ends, i)
	}
}

func (w *world) number(host string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(host, "gpu-"))
	require.NoError(w.t, err)
	return i
}

// check compares the decisions with the facts.
func (w *world) check(f recovery.Fleet) {
	require.Len(w.t, w.last.Decisions, len(f.Nodes), "one decision for each node")
	probes := 0
	for _, d := range w.last.Decisions {
		n := w.nodes[w.number(d.Host)]
		require.NotEmpty(w.t, d.Why, "%s", d.Host)
		if !d.Acts() {
			continue
		}
		require.Equal(w.t, recovery.ModeArmed, w.policy.Mode)
		require.Empty(w.t, n.Held, "%s is held", d.Host)
		require.True(w.t, slices.ContainsFunc(n.Conditions, func(c health.Condition) bool { return c.Status == health.Unhealthy }), "%s is healthy", d.Host)
		if !w.last.Breaker.OpenSince.IsZero() {
			probes++
			require.Equal(w.t, d.NodeID, w.last.Breaker.Probing)
			require.Empty(w.t, f.Breaker.Probing, "a second probe")
		}
	}
	require.LessOrEqual(w.t, probes, 1)
}

// within checks that the repairs that run are within every budget.
func (w *world) within() {
	f := w.fleet()
	for _, b := range w.policy.Budgets {
		for _, s := range f.Sizes {
			if s.Scope == b.Scope {
				require.LessOrEqual(w.t, s.Busy, min(b.Count, b.Percent*s.Nodes/100), "%s %s at %s", s.Scope, s.Key, f.At)
			}
		}
	}
}

func reason(name string) health.Condition {
	return condition("node_ready", name, health.RepairReboot, time.Time{})
}

// TestAnySequence runs random faults, cures, holds and outages through random policies. The checks
// are those of world.round.
func TestAnySequence(t *testing.T) {
	t.Parallel()
	seeds := 40
	if testing.Short() {
		seeds = 8
	}
	started := 0
	for seed := range seeds {
		random := rand.New(rand.NewPCG(uint64(seed), 13))
		p := armed()
		p.Breaker.Nodes, p.Breaker.Percent = 3+random.IntN(30), 1+random.IntN(50)
		p.Suspect.Percent = 20 + random.IntN(60)
		for i := range p.Budgets {
			p.Budgets[i].Count, p.Budgets[i].Percent = random.IntN(6), random.IntN(60)
		}
		w := newWorld(t, p, 40+random.IntN(160))
		w.repair = func(recovery.Node, recovery.Request) (time.Duration, string) {
			outcomes := []string{recovery.OutcomeCured, recovery.OutcomeCured, recovery.OutcomeNotCured, recovery.OutcomeFailed, recovery.OutcomeUnknown}
			return time.Duration(1+random.IntN(60)) * time.Minute, outcomes[random.IntN(len(outcomes))]
		}
		for range 200 {
			w.disturb(random)
			w.round(time.Duration(30+random.IntN(120)) * time.Second)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		started += len(w.begun)
	}
	require.Greater(t, started, seeds, "the rounds start repairs")
}

// disturb changes the facts as nodes and operators do.
func (w *world) disturb(random *rand.Rand) {
	reasons := []string{"KubeletNotReady", "NodeStatusUnknown", "Xid"}
	for range random.IntN(3) {
		i := random.IntN(len(w.nodes))
		switch random.IntN(6) {
		case 0:
			w.heal(i)
		case 1:
			w.nodes[i].Held = "an operator works on it"
		case 2:
			w.nodes[i].Held = ""
		case 3:
			w.nodes[i].BootedAt = w.at
		default:
			w.fail(i, reason(reasons[random.IntN(len(reasons))]))
		}
	}
	if random.IntN(60) == 0 { // a rack's switch
		first := random.IntN(len(w.nodes)/rackNodes) * rackNodes
		for i := first; i < first+rackNodes; i++ {
			w.fail(i, reason("NodeStatusUnknown"))
		}
	}
}

// TestOrderOfInput shows that the order of the facts decides nothing.
func TestOrderOfInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 200)
	random := rand.New(rand.NewPCG(1, 13))
	for range 150 {
		w.disturb(random)
		f := w.fleet()
		want := recovery.Decide(w.policy, f)
		shuffled := f
		shuffled.Nodes, shuffled.Sizes = shuffle(random, f.Nodes), shuffle(random, f.Sizes)
		for i, n := range shuffled.Nodes {
			shuffled.Nodes[i].Conditions, shuffled.Nodes[i].Attempts = shuffle(random, n.Conditions), shuffle(random, n.Attempts)
		}
		require.Equal(t, want, recovery.Decide(w.policy, shuffled))
		w.round(time.Minute)
	}
	require.NotEmpty(t, w.begun)
}

func shuffle[T any](random *rand.Rand, list []T) []T {
	list = slices.Clone(list)
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
