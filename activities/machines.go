package activities

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// MachineProvider creates and deletes machines. An adapter implements it in a package of its
// own below internal/providers and passes the conformance suite in test/conformance/provider.
//
// Every call may be repeated, also by two workers at once and after a call whose response was
// lost. A call is fast: it returns when the provider has accepted the request, and the caller
// polls Describe. It ends when ctx ends, and its error has a reason of machine.Problems: the
// adapter returns machine.ReasonUnavailable only if the request certainly had no effect, and
// machine.ReasonAmbiguous if it may have had one. It never sleeps and never retries: the
// caller does. No error, detail or console tail contains a credential of the provider.
type MachineProvider interface {
	// Create creates the machine of the spec, or returns the one that exists with the owner
	// tag s.InstanceID, in whatever phase. It calls boot at most once, and only if it will
	// create a machine.
	Create(ctx context.Context, s machine.Spec, boot BootData) (machine.Machine, error)
	// Describe returns the machine, found by its external ID or, without one, by its owner tag.
	// machine.ReasonMissing if the provider has none, which must be certain.
	Describe(ctx context.Context, r machine.Ref) (machine.Machine, error)
	// Power asks for a change of the machine's power. Switching a running machine on, or a
	// stopped one off, succeeds and changes nothing; so does a reset of a stopped machine, which
	// switches it on.
	Power(ctx context.Context, r machine.Ref, p machine.Power) error
	// Console returns the end of the machine's console, at most machine.MaxConsole bytes, which
	// are untrusted. It is empty if there is none yet.
	Console(ctx context.Context, r machine.Ref) ([]byte, error)
	// Delete asks for the deletion of the machine and of everything that was created with it.
	// It succeeds if there is none. It deletes only a machine with the owner tag r.InstanceID,
	// whatever the external ID.
	Delete(ctx context.Context, r machine.Ref) error
	// List returns the machines with an owner tag of this installation, those that are being
	// created or deleted included.
	List(ctx context.Context) ([]machine.Machine, error)
}

// BootData returns what the new machine needs to enroll: a reference that can be used once. It
// is a secret: the adapter passes it to the machine and keeps no copy.
type BootData func(ctx context.Context) (Boot, error)

// Boot is what a new machine reads on its first boot.
type Boot struct {
	// UserData is a script or document for the machine's init system, which installs the agent
	// with the reference.
	UserData []byte
	// BaseURL is the address of the node API, CABundlePEM verifies its certificate, and
	// Reference is the one-time reference of the bundle: what UserData contains, for an image
	// with the agent.
	BaseURL     string
	CABundlePEM string
	Reference   string
}
