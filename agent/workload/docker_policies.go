package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// recordedPolicy is the restart policy that a container had before the driver removed it.
type recordedPolicy struct {
	// Container is the container's name at that time.
	Container string        `json:"container"`
	Policy    restartPolicy `json:"policy"`
}

// policyRecord are the restart policies that the driver removed, by the ID of the container.
// An entry is durable before the policy is removed, and until it is restored.
type policyRecord struct {
	file stateFile

	mu sync.Mutex
	// kept is replaced by each change.
	kept map[string]recordedPolicy
}

func (r *policyRecord) load() error {
	r.kept = map[string]recordedPolicy{}
	_, err := r.file.read(&r.kept)
	return err
}

// all returns the entries. The caller must not change them.
func (r *policyRecord) all() map[string]recordedPolicy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

func (r *policyRecord) has(id string) bool {
	_, ok := r.all()[id]
	return ok
}

// put stores an entry. It replaces an earlier one of the container: the policy that is
// removed now is the one to restore.
func (r *policyRecord) put(id string, p recordedPolicy) error {
	next := maps.Clone(r.all())
	next[id] = p
	return r.store(next)
}

// remove deletes entries.
func (r *policyRecord) remove(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	next := maps.Clone(r.all())
	maps.DeleteFunc(next, func(id string, _ recordedPolicy) bool { return slices.Contains(ids, id) })
	return r.store(next)
}

// store replaces the entries. Only one goroutine at a time may change them: the one that
// holds dockerDriver.changing.
func (r *policyRecord) store(next map[string]recordedPolicy) error {
	if err := r.file.write(next); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = next
	return nil
}

// Restore implements Restorer. It starts the daemon if Finish stopped it, sets the recorded
// restart policies, and forgets which containers were asked to stop. It does not start
// containers.
func (d *dockerDriver) Restore(ctx context.Context, names ...string) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	return errors.Join(d.restore(ctx, names), d.marks.clear())
}

// retryRestore restores everything unless the node is cordoned. A drain begins with a
// cordon, so a policy that is recorded while the node is not cordoned is left from one that
// ended.
func (d *dockerDriver) retryRestore(ctx context.Context) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	if d.cordoned() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout) // a drain may wait for the lock
	defer cancel()
	return d.restore(ctx, nil)
}

// restore restores the policies of the named containers, of all if there are no names. The
// caller holds changing.
func (d *dockerDriver) restore(ctx context.Context, names []string) error {
	if err := d.daemon.restore(ctx); err != nil {
		return err
	}
	kept := d.policies.all()
	if len(kept) == 0 {
		return nil
	}
	api, err := d.api.connect(ctx)
	if err != nil {
		return err
	}
	var done []string
	var faults []error
	for _, id := range slices.Sorted(maps.Keys(kept)) {
		if len(names) > 0 && !slices.Contains(names, kept[id].Container) {
			continue
		}
		if err := restorePolicy(ctx, api, id, kept[id].Policy); err != nil {
			faults = append(faults, fmt.Errorf("container %s: %w", kept[id].Container, err))
			continue
		}
		done = append(done, id)
	}
	return errors.Join(errors.Join(faults...), d.policies.remove(done))
}

// restorePolicy sets a recorded policy, unless the container does not exist or has a policy
// already: then an operator has set another one, or the driver did not get to remove it.
func restorePolicy(ctx context.Context, api dockerAPI, id string, p restartPolicy) error {
	c, ok, err := api.inspect(ctx, id)
	if err != nil || !ok || c.HostConfig.RestartPolicy.restarts() {
		return err
	}
	return api.setPolicy(ctx, id, p)
}
