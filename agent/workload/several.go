package workload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gpuaas/gpuaas/schema/task"
)

// Named is one of several drivers of a node.
type Named struct {
	// Name is the driver's name in the configuration and the kind of its workloads.
	Name string
	Driver
}

// several is the driver of a node with workloads of several kinds. The name of a workload
// is its driver's name, a slash and the name within the driver, so that names stay unique:
// docker/train and systemd/train.service. What one driver cannot list
// is an error, because it must prevent a drain from succeeding.
type several struct{ drivers []Named }

// NewSeveral makes one driver of several with different names. It lists and stops the
// workloads in the order of the drivers.
func NewSeveral(drivers []Named) Driver { return several{drivers} }

// failed is an error with the name of the driver.
func (n Named) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("workload driver %s: %w", n.Name, err)
}

// List implements Driver.
func (s several) List(ctx context.Context) ([]task.Workload, error) {
	all, faults := []task.Workload{}, []error{}
	for _, d := range s.drivers {
		list, err := d.List(ctx)
		faults = append(faults, d.failed(err))
		for _, w := range list {
			w.Name = d.Name + "/" + w.Name
			all = append(all, w)
		}
	}
	return all, errors.Join(faults...)
}

// of returns the driver of a workload, and the workload's name within it.
func (s several) of(name string) (Named, string, error) {
	prefix, rest, _ := strings.Cut(name, "/")
	for _, d := range s.drivers {
		if d.Name == prefix {
			return d, rest, nil
		}
	}
	return Named{}, "", fmt.Errorf("no workload driver of this node has the workload %q", name)
}

// Stop implements Driver.
func (s several) Stop(ctx context.Context, name string) error {
	d, rest, err := s.of(name)
	if err != nil {
		return err
	}
	return d.failed(d.Stop(ctx, rest))
}

// Kill implements Driver.
func (s several) Kill(ctx context.Context, name string) error {
	d, rest, err := s.of(name)
	if err != nil {
		return err
	}
	return d.failed(d.Kill(ctx, rest))
}

// Run implements Driver.
func (s several) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, d := range s.drivers {
		all.Go(func() { d.Run(ctx) })
	}
	all.Wait()
}

// Finish implements Restorer.
func (s several) Finish(ctx context.Context) error {
	for _, d := range s.drivers {
		if err := finish(ctx, d.Driver); err != nil {
			return d.failed(err)
		}
	}
	return nil
}

// Restore implements Restorer. A driver that fails does not keep the others from it.
func (s several) Restore(ctx context.Context, names ...string) error {
	var faults []error
	for _, d := range s.drivers {
		var own []string
		for _, name := range names {
			if rest, ok := strings.CutPrefix(name, d.Name+"/"); ok {
				own = append(own, rest)
			}
		}
		if len(names) > 0 && len(own) == 0 {
			continue
		}
		faults = append(faults, d.failed(restore(ctx, d.Driver, own...)))
	}
	return errors.Join(faults...)
}

// Cordon implements Cordoner. A driver that fails does not keep the others from it.
func (s several) Cordon(ctx context.Context, on bool) error {
	return s.each(func(d Driver) error { return cordon(ctx, d, on) })
}

// Leave implements Leaver. A driver that fails does not keep the others from it.
func (s several) Leave(ctx context.Context) error {
	return s.each(func(d Driver) error { return leave(ctx, d) })
}

// each calls every driver.
func (s several) each(call func(Driver) error) error {
	faults := make([]error, len(s.drivers))
	for i, d := range s.drivers {
		faults[i] = d.failed(call(d.Driver))
	}
	return errors.Join(faults...)
}
