package activities_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// book is the ledger of a node with several machines.
type book struct {
	activities.Ledger
	open []activities.Resource
	// refuses is the error of every release, and ended that of every read.
	refuses, ended error
}

func (b *book) Open(context.Context, activities.Fence) ([]activities.Resource, error) {
	return slices.Clone(b.open), b.ended
}

func (b *book) Released(_ context.Context, _ activities.Fence, id string) error {
	if b.refuses == nil {
		b.open = slices.DeleteFunc(b.open, func(r activities.Resource) bool { return r.ResourceID == id })
	}
	return b.refuses
}

// teardown is a node with machines of the provider acme, the oldest first.
type teardown struct {
	*book
	*recorder.Provider
	t       *testing.T
	entries int
	// fails are the errors of the deletions by instance ID, and asked the deletions.
	fails map[string]error
	asked []string
	// second is set if the provider has another machine with the owner tag.
	second bool
	// during runs during each deletion.
	during func()
}

func tearDownOf(t *testing.T, instances ...string) *teardown {
	t.Helper()
	d := &teardown{book: &book{}, Provider: recorder.New(), t: t, entries: len(instances), fails: map[string]error{}}
	for _, id := range instances {
		found := d.Site.Add(recorder.Record{Owner: id, Host: "gpu-17"})
		d.open = append(d.open, activities.Resource{ResourceID: id, Kind: "instance", Provider: "acme", ExternalID: found.ID, Host: "gpu-17"})
	}
	return d
}

// Delete removes the machine at once, unless it fails.
func (d *teardown) Delete(ctx context.Context, r machine.Ref) error {
	d.asked = append(d.asked, r.InstanceID)
	limit, ok := ctx.Deadline()
	require.True(d.t, ok)
	waiting := max(1, d.entries-len(d.asked)+1) // no deletion uses up the time of those that follow
	require.LessOrEqual(d.t, time.Until(limit), activities.ProviderTimeout/time.Duration(waiting))
	if d.during != nil {
		d.during()
	}
	err := d.fails[r.InstanceID]
	if err == nil || machine.Is(err, machine.ReasonAmbiguous) {
		d.Site.Remove(r.ExternalID)
	}
	if d.second {
		d.Site.Advance(d.Site.Add(recorder.Record{Owner: r.InstanceID, Host: "gpu-17"}).ID)
	}
	return err
}

// run runs the activity once.
func (d *teardown) run() error {
	d.t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	m := &activities.Machine{Ledger: d.book, Providers: map[string]activities.Source{
		"acme": {Info: machine.Info{Name: "acme", Creates: true}, Provider: d}}}
	env.RegisterActivity(m)
	_, err := env.ExecuteActivity(m.TearDownMachine, activities.Fence{NodeID: "n"})
	return err
}

// left are the instances of the open entries.
func (d *teardown) left() (ids []string) {
	for _, r := range d.open {
		ids = append(ids, r.ResourceID)
	}
	return ids
}

// answerLost is the error of a deletion that had an effect.
func answerLost() error { return machine.Errorf(machine.ReasonAmbiguous, "the connection broke") }

func keyExpired() error { return machine.Errorf(machine.ReasonAuth, "the key has expired") }

// TestTearDownAsksForAll: a pass asks for the machine of every entry, the newest first, whatever the
// answers for the others.
func TestTearDownAsksForAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails       map[string]error
		left        []string
		reason, say string
		final       bool
	}{
		"only the newest fails": {map[string]error{"i-3": keyExpired()}, []string{"i-3"}, machine.ReasonAuth, "the key has expired", true},
		"only the oldest fails": {map[string]error{"i-1": keyExpired()}, []string{"i-1"}, machine.ReasonAuth, "the key has expired", true},
		"all fail": {map[string]error{"i-1": keyExpired(), "i-2": keyExpired(), "i-3": machine.Errorf(machine.ReasonRejected, "it is locked")},
			[]string{"i-1", "i-2", "i-3"}, machine.ReasonRejected,
			"instance i-3: it is locked; instance i-2: the key has expired; instance i-1: the key has expired", true},
		"a retry helps one of them": {map[string]error{"i-1": machine.Errorf(machine.ReasonUnavailable, "it does not respond"), "i-3": keyExpired()},
			[]string{"i-1", "i-3"}, machine.ReasonUnavailable, "instance i-1: it does not respond; instance i-3: the key has expired", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := tearDownOf(t, "i-1", "i-2", "i-3")
			d.fails = c.fails
			err := d.run()
			require.Equal(t, []string{"i-3", "i-2", "i-1"}, d.asked)
			require.Equal(t, c.left, d.left())
			e := activities.Typed(err)
			require.Equal(t, c.reason, e.Reason)
			require.Equal(t, c.say, e.Message)
			require.NotEmpty(t, e.Next)
			var app *temporal.ApplicationError
			require.ErrorAs(t, err, &app)
			require.Equal(t, c.final, app.NonRetryable())
		})
	}
}

// TestTearDownOfManyEntries: the error describes four entries and counts the others.
func TestTearDownOfManyEntries(t *testing.T) {
	t.Parallel()
	d := tearDownOf(t, "i-1", "i-2", "i-3", "i-4", "i-5", "i-6")
	for _, id := range d.left() {
		d.fails[id] = keyExpired()
	}
	require.Regexp(t, "^instance i-6: .*; instance i-3: the key has expired; and 2 more$", activities.Typed(d.run()).Message)
	require.Len(t, d.asked, 6)
}

// TestTearDownEndsWithItsOperation: a pass whose release is refused by the ledger asks for no other
// machine.
func TestTearDownEndsWithItsOperation(t *testing.T) {
	t.Parallel()
	d := tearDownOf(t, "i-1", "i-2")
	d.refuses = schema.NewError(schema.KindFenced, "another operation holds the node")
	require.Equal(t, schema.KindFenced, activities.Typed(d.run()).Kind)
	require.Equal(t, []string{"i-2"}, d.asked)
}

// TestTearDownOfAnAbandonedRun: the operation ends during the deletion of one machine, as by a
// rehydration after its run was terminated. No other machine is deleted, whatever became of the
// first one.
func TestTearDownOfAnAbandonedRun(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]error{"deleted": nil, "rejected": keyExpired(), "lost answer": answerLost()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := tearDownOf(t, "i-1", "i-2")
			d.fails["i-2"] = fails
			d.during = func() {
				d.ended = schema.NewError(schema.KindFenced, "the operation ended")
				d.refuses = d.ended
			}
			require.Equal(t, schema.KindFenced, activities.Typed(d.run()).Kind)
			require.Equal(t, []string{"i-2"}, d.asked)
			require.Equal(t, []string{"i-1", "i-2"}, d.left())
		})
	}
}

// TestTearDownVerifiesByOwnerTag: after a deletion, also one whose answer was lost, an entry stays open
// until its provider has no machine with the owner tag.
func TestTearDownVerifiesByOwnerTag(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deletion, second bool // fails with a lost answer; the provider has a second machine
		reason           string
	}{
		"gone after a lost answer": {true, false, ""},
		"a second machine is left": {false, true, machine.ReasonDeleting},
		"both":                     {true, true, machine.ReasonAmbiguous},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := tearDownOf(t, "i-1")
			if c.deletion {
				d.fails["i-1"] = answerLost()
			}
			d.second = c.second
			err := d.run()
			require.Equal(t, []string{"i-1"}, d.asked[:1])
			if c.reason == "" {
				require.NoError(t, err)
				require.Empty(t, d.left())
				return
			}
			require.Equal(t, c.reason, activities.Typed(err).Reason)
			require.Equal(t, []string{"i-1"}, d.left())
		})
	}
}
