package activities

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// ReturnMachine releases the machine that EnsureMachine planned for the instance, if
// it did, and returns how many it released. It keeps the other entries of the node. A
// second run continues where the first one stopped.
func (m *Machine) ReturnMachine(ctx context.Context, in MachineInput) (released int, err error) {
	return m.releaseOpen(ctx, in.Fence, func(r Resource) bool { return r.ResourceID == in.Instance.InstanceID })
}

// teardownPasses bounds how often a teardown reads the ledger again.
const teardownPasses = 3

// TearDownMachine releases every open entry of the node's ledger and returns how many it
// released. It then reads the ledger again, because the creation of a machine may have
// ended meanwhile. An entry that cannot be released does not keep the others from it: the error
// names all of them. A second run continues where the first one stopped.
func (m *Machine) TearDownMachine(ctx context.Context, f Fence) (released int, err error) {
	return m.releaseOpen(ctx, f, func(Resource) bool { return true })
}

// releaseOpen releases the open entries of the node's ledger that match, until there is none. It
// ends after the first pass in which an entry could not be released.
func (m *Machine) releaseOpen(ctx context.Context, f Fence, matches func(Resource) bool) (released int, err error) {
	ctx, done := uncanceled(ctx)
	defer done()
	for range teardownPasses {
		open, err := m.Ledger.Open(ctx, f)
		if err != nil {
			return 0, Fail(err)
		}
		open = slices.DeleteFunc(open, func(r Resource) bool { return !matches(r) })
		if len(open) == 0 {
			return released, nil
		}
		if err := m.releaseAll(ctx, f, open); err != nil {
			return 0, Fail(err)
		}
		released += len(open)
	}
	return 0, Fail(schema.NewError(schema.KindServiceUnavailable, "node %s has new entries in its ledger after each release", f.NodeID))
}

// releaseAll deletes the machine of each entry, the newest first because it is the one of the
// current instance, and records those that are gone. If a machine is not gone, it continues with
// the next one. An error of the ledger ends the pass. The ledger is read or written between two
// deletions, so that a run whose operation ended, as by a rehydration, deletes nothing more than the
// machine whose deletion it has begun.
func (m *Machine) releaseAll(ctx context.Context, f Fence, open []Resource) error {
	var left []unreleased
	for i, r := range slices.Backward(open) {
		if err := m.deleteEntry(ctx, r, i+1); err != nil {
			left = append(left, unreleased{r, cmp.Or(Typed(Fail(err)), schema.AsError(err))})
			if i == 0 {
				break
			}
			if _, err := m.Ledger.Open(ctx, f); err != nil {
				return err
			}
			continue
		}
		if err := m.Ledger.Released(ctx, f, r.ResourceID); err != nil {
			return err
		}
	}
	return notReleased(left)
}

// deleteEntry deletes the machine of an entry. entries is how many the pass still has: each gets
// the same share of the time that is left, so that a provider that does not respond does not use
// up the time of the others.
func (m *Machine) deleteEntry(ctx context.Context, r Resource, entries int) error {
	source, err := m.source(r.Provider)
	if err != nil {
		return err
	}
	if limit, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(limit)/time.Duration(entries))
		defer cancel()
	}
	if !source.Creates { // an adopted machine stays
		return source.Provider.Delete(ctx, r.machine())
	}
	return deleteMachine(ctx, source.Provider, r.machine())
}

// unreleased is an entry that a pass could not release.
type unreleased struct {
	Resource
	err *schema.Error
}

// maxUnreleased is how many entries the error of a pass describes.
const maxUnreleased = 4

// notReleased returns the error of a pass, nil without entries. It is that of the first entry that
// can be released by a retry, so that the retries continue; if there is none, that of the first
// entry. Its message describes the other ones, too.
func notReleased(left []unreleased) error {
	if len(left) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(left, func(u unreleased) bool { return u.err.Kind.Info().Retry }))
	e := *left[i].err
	if len(left) == 1 {
		return &e
	}
	var messages []string
	for _, u := range slices.Concat(left[i:i+1], left[:i], left[i+1:])[:min(len(left), maxUnreleased)] {
		messages = append(messages, u.Kind+" "+u.ResourceID+": "+text.Line(u.err.Message, maxDetail))
	}
	if more := len(left) - len(messages); more > 0 {
		messages = append(messages, "and "+strconv.Itoa(more)+" more")
	}
	e.Message = strings.Join(messages, "; ")
	return &e
}

// deleteMachine deletes a machine and returns nil once the provider has none with the owner tag,
// machine.ReasonDeleting while it is being deleted. A deletion whose result is not known is not
// repeated: the provider is asked for the machine.
func deleteMachine(ctx context.Context, p MachineProvider, r machine.Ref) error {
	deletion := p.Delete(ctx, r)
	if deletion != nil && !machine.Is(deletion, machine.ReasonAmbiguous) {
		return deletion
	}
	r.ExternalID = "" // any machine with the owner tag
	left, err := p.Describe(ctx, r)
	switch {
	case machine.Is(err, machine.ReasonMissing):
		return nil
	case err != nil:
		return err
	case deletion != nil && left.Phase != machine.Deleting:
		return deletion
	}
	return machine.Errorf(machine.ReasonDeleting, "the machine of %s is %s", r.Host, left.Phase)
}
