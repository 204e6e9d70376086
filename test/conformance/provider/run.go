package provider

import (
	"slices"
	"testing"
)

// Prints is implemented by an Outside that can write to a machine's console.
type Prints interface {
	Print(t *testing.T, externalID string, data []byte)
}

// Details is implemented by an Outside that can set the state text that the provider reports of a
// machine.
type Details interface {
	Explain(t *testing.T, externalID, detail string)
}

// Minimum is how many cases must run, and not be skipped, for a target that creates machines and
// has Faults and Outside.
const Minimum = 50

// need is what a case requires of its target.
type need int

const (
	creates need = 1 << iota // the provider creates machines
	adopts                   // the provider adopts machines and has no record of them
	faults
	outside
	second
)

// A testCase is one rule of the port. run has a target of its own.
type testCase struct {
	name  string
	needs need
	run   func(b *bench)
}

// Run runs the cases, one after the other, each on a target of its own. A case whose target lacks
// something is skipped with the reason. Run fails if too few cases ran for a target that has
// everything.
func Run(t *testing.T, open func(t *testing.T) Target) {
	t.Helper()
	cases := slices.Concat(createCases(), exclusiveCases(), bootCases(), createFaults(), specCases(),
		describeCases(), describeChanges(), powerCases(), powerTargets(), powerFaults(), consoleCases(),
		deleteCases(), deletePhases(), deleteFaults(), listCases(), listOthers(), listFaults(),
		contextCases(), secretCases(), adoptCases())
	started, ran, complete := 0, 0, false
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			started++
			defer func() {
				if !t.Skipped() {
					ran++
				}
			}()
			b := newBench(t, open(t))
			complete = b.Info.Creates && b.Faults != nil && b.Outside != nil && !b.Sample
			skipWithout(b, c.needs)
			c.run(b)
		})
	}
	if started == len(cases) && complete && ran < Minimum { // -run may select a part
		t.Errorf("%d of %d cases ran, fewer than %d: the faults of this target are incomplete", ran, len(cases), Minimum)
	}
	t.Logf("%d of %d cases ran", ran, len(cases))
}

// skipWithout skips the case if its target lacks something.
func skipWithout(b *bench, n need) {
	b.t.Helper()
	for _, r := range []struct {
		need need
		has  bool
		lack string
	}{
		{creates, b.Info.Creates, "the provider creates no machines"},
		{adopts, !b.Info.Creates, "the provider creates machines and adopts none"},
		{faults, b.Faults != nil, "the target has no Faults"},
		{outside, b.Outside != nil, "the target has no Outside"},
		{second, b.Second != nil, "the target has no Second"},
	} {
		if n&r.need != 0 && !r.has {
			b.t.Skip(r.lack)
		}
	}
}
