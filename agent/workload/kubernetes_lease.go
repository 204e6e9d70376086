package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
)

// Times of the move of a lease.
const (
	// leaseWait is how long the new holder has to renew the lease.
	leaseWait = 20 * time.Second
	leasePoll = time.Second
	// microTime is the form of the times in a Lease.
	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

// kubeLease is the part of a Lease that a move reads.
type kubeLease struct {
	Metadata kubeMeta `json:"metadata"`
	Spec     struct {
		Holder      string `json:"holderIdentity"` // "" once it was released
		RenewTime   string `json:"renewTime"`
		Transitions int    `json:"leaseTransitions"`
	} `json:"spec"`
}

// validLease reports whether s is namespace/name.
func validLease(s string) bool {
	namespace, name, _ := strings.Cut(s, "/")
	return validKubeName(namespace) && validKubeName(name)
}

// moveLease makes another ready server the holder of a lease that this node holds, and returns
// when the new holder has renewed it. The holder of the lease has the cluster's virtual address;
// its identity is the name of its node, as with kube-vip. The previous holder sees the new one
// at its next renewal and stops. If another node holds the lease, nothing changes, but it must
// renew it too: an earlier move may have been in vain.
func (a *kubeAPI) moveLease(ctx context.Context, lease string) error {
	namespace, name, _ := strings.Cut(lease, "/")
	path := kubePath("/apis/coordination.k8s.io/v1", "namespaces", namespace, "leases", name)
	for range conflictTries { // this node may renew the lease between the read and the change
		var l kubeLease
		if err := a.call(ctx, http.MethodGet, path, nil, nil, &l); err != nil {
			return fmt.Errorf("cannot read the lease %s of the virtual address: %w", lease, err)
		}
		if l.Spec.Holder != a.node {
			return a.awaitHolder(ctx, path, l)
		}
		others, err := a.otherServers(ctx)
		if err != nil {
			return fmt.Errorf("cannot find another server for the virtual address: %w", err)
		}
		if len(others) == 0 {
			return errors.New("no other server is ready to have the virtual address")
		}
		moved := time.Now().UTC().Format(microTime)
		err = a.call(ctx, http.MethodPatch, path, nil, map[string]any{
			"metadata": map[string]any{"resourceVersion": l.Metadata.ResourceVersion},
			"spec":     map[string]any{"holderIdentity": others[0], "acquireTime": moved, "renewTime": moved, "leaseTransitions": l.Spec.Transitions + 1},
		}, nil)
		if err == nil {
			l.Spec.Holder, l.Spec.RenewTime = others[0], moved
			return a.awaitHolder(ctx, path, l)
		}
		if kubeStatus(err) != http.StatusConflict {
			return fmt.Errorf("cannot move the virtual address to %s: %w", others[0], err)
		}
	}
	return fmt.Errorf("the lease %s changes too often to move the virtual address", lease)
}

// awaitHolder waits until another node, which holds the lease, has renewed it. The previous holder
// of a lease that was released or moved does not renew it any longer.
func (a *kubeAPI) awaitHolder(ctx context.Context, path string, before kubeLease) error {
	limited, cancel := context.WithTimeout(ctx, leaseWait)
	defer cancel()
	last := "the lease was not read"
	for wait.Sleep(limited, leasePoll) == nil {
		var l kubeLease
		switch err := a.call(limited, http.MethodGet, path, nil, nil, &l); {
		case limited.Err() != nil: // the last answer says more
		case err != nil:
			last = err.Error()
		case l.Spec.Holder != "" && l.Spec.Holder != a.node && !sameTime(l.Spec.RenewTime, before.Spec.RenewTime):
			return nil
		default:
			last = fmt.Sprintf("the holder of the lease is %q", text.Printable(text.Truncate(l.Spec.Holder), maxKubeName))
		}
	}
	return fmt.Errorf("no other server renewed the lease of the virtual address within %s: %s", leaseWait, last)
}

// sameTime compares times of a Lease.
func sameTime(a, b string) bool {
	x, errA := time.Parse(time.RFC3339Nano, a)
	y, errB := time.Parse(time.RFC3339Nano, b)
	return errA == nil && errB == nil && x.Equal(y)
}
