// Package providertest has what the tests of machine providers share: faults between an adapter
// and a provider in memory, and that provider as its own console shows it.
package providertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
)

// ErrLost is the error of a request without an answer, and ErrGarbage that of an answer that
// cannot be parsed.
var (
	ErrLost    = errors.New("connection reset by peer")
	ErrGarbage = errors.New("the answer cannot be parsed")
)

// Secret is a credential that the double of a provider includes in its errors.
const Secret = "key-5f0c1b7e2d"

// Faults implements provider.Faults for requests that pass through Gate. The zero value has no
// fault.
type Faults struct {
	mu   sync.Mutex
	call provider.Call
	mode provider.Mode
	left int
	late sync.WaitGroup
	slow atomic.Int32
}

// Inject implements provider.Faults.
func (f *Faults) Inject(c provider.Call, m provider.Mode, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call, f.mode, f.left = c, m, n
	return true
}

// Waiting implements provider.Faults.
func (f *Faults) Waiting() bool { return f.slow.Load() > 0 }

// Clear implements provider.Faults. It waits for late requests.
func (f *Faults) Clear() {
	f.mu.Lock()
	f.left = 0
	f.mu.Unlock()
	f.late.Wait()
}

// changing reports whether a call has a request that changes the provider.
func changing(c provider.Call) bool {
	return c == provider.Create || c == provider.Power || c == provider.Delete
}

func (f *Faults) take(method string, changes bool) provider.Mode {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 || string(f.call) != method || changing(f.call) != changes {
		return ""
	}
	f.left--
	return f.mode
}

// Gate runs the request do of a method, unless it must fail before. It is a recorder.Gate.
func (f *Faults) Gate(ctx context.Context, method string, changes bool, do func()) error {
	switch mode := f.take(method, changes); mode {
	case "":
		do()
		return nil
	case provider.LostRequest:
		return machine.Errorf(machine.ReasonUnavailable, "connection refused")
	case provider.Unavailable:
		return machine.Errorf(machine.ReasonUnavailable, "the site responds with 503")
	case provider.Quota:
		return machine.Errorf(machine.ReasonQuota, "the quota of 0 machines is used up")
	case provider.Capacity:
		return machine.Errorf(machine.ReasonCapacity, "there is no free machine")
	case provider.Auth:
		return machine.Errorf(machine.ReasonAuth, "the credentials are rejected")
	case provider.Late:
		f.late.Go(func() {
			<-time.After(20 * time.Millisecond)
			do()
		})
		return ErrLost
	case provider.Slow:
		do()
		f.slow.Add(1)
		defer f.slow.Add(-1)
		<-ctx.Done()
		return ctx.Err()
	case provider.Garbage:
		do()
		return ErrGarbage
	default:
		do()
		return ErrLost
	}
}
