// Package provider is the conformance suite of machine providers: every adapter below
// internal/providers passes Run.
package provider

import (
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Target is an adapter under test, with a provider that has no machines.
type Target struct {
	Provider activities.MachineProvider
	Info     machine.Info
	// Spec returns a valid spec with a new instance ID and host name.
	Spec func() machine.Spec
	// Faults makes the provider fail below the adapter. The cases that need it are skipped if it
	// is nil.
	Faults Faults
	// Outside reads and changes the provider's machines without the adapter. The cases that need
	// it are skipped if it is nil.
	Outside Outside
	// Second is another adapter for the same provider, as a second worker has it. Nil skips.
	Second activities.MachineProvider
	// Sample is set if only some cases run, because each takes long. No minimum applies.
	Sample bool
	// Secrets are credentials of the provider, which no error and no output may contain.
	Secrets []string
	// Wait bounds how long a machine takes to be Running, Stopped or deleted.
	Wait time.Duration
}

// Call is a method of activities.MachineProvider.
type Call string

// The calls.
const (
	Create   Call = "create"
	Describe Call = "describe"
	Power    Call = "power"
	Console  Call = "console"
	Delete   Call = "delete"
	List     Call = "list"
)

// Mode is how a call fails.
type Mode string

// The modes.
const (
	// LostRequest: the request does not reach the provider. LostReply: the provider does what
	// was asked, and the adapter sees an error of the connection. Late: as LostReply, and the
	// provider does it a moment after the error.
	LostRequest Mode = "lost_request"
	LostReply   Mode = "lost_reply"
	Late        Mode = "late"
	// Slow: the provider responds only after the context has ended. It does what was asked.
	Slow Mode = "slow"
	// Quota, Capacity, Auth and Unavailable are responses of the provider, without effect.
	Quota       Mode = "quota"
	Capacity    Mode = "capacity"
	Auth        Mode = "auth"
	Unavailable Mode = "unavailable"
	// Garbage: the response cannot be parsed. The provider did what was asked.
	Garbage Mode = "garbage"
)

// Faults injects faults between an adapter and its provider.
type Faults interface {
	// Inject makes the next n requests of the call's changing or deciding kind fail in a mode. It
	// returns false if the provider cannot fail in this mode; the case is skipped.
	Inject(c Call, m Mode, n int) bool
	// Waiting reports whether a slow request has had its effect and waits for the end of its context.
	Waiting() bool
	// Clear ends all faults.
	Clear()
}

// Outside is the provider as its own console shows it.
type Outside interface {
	// Machines returns the external IDs of all machines, with or without an owner tag.
	Machines(t *testing.T) []string
	// Leftovers returns what exists besides machines and was created with one: disks, files,
	// addresses.
	Leftovers(t *testing.T) []string
	// Foreign creates a machine without an owner tag of this installation and returns its
	// external ID.
	Foreign(t *testing.T, host string) string
	// Destroy deletes a machine; Stop switches it off.
	Destroy(t *testing.T, externalID string)
	Stop(t *testing.T, externalID string)
	// PoweredOn reports whether the machine has power.
	PoweredOn(t *testing.T, externalID string) bool
	// Break puts the machine into the phase Failed. It returns false if the provider has no
	// such state.
	Break(t *testing.T, externalID string) bool
}
