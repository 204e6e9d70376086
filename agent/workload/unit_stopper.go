package workload

import (
	"context"
	"fmt"
	"slices"
)

// unitStopper stops units of systemd at the end of a drain and starts them again, if the
// configuration asks for that.
type unitStopper struct {
	enabled bool
	// what the units are, in errors.
	what string
	// names are the units in the order in which they are stopped. The last one must be active.
	names []string
	units bus
	file  stateFile
}

// stoppedUnits is the record of units that a driver stopped. It is durable before the first
// one is stopped, and until all are started again.
type stoppedUnits struct {
	// Units were active, in the order in which they are stopped.
	Units []string `json:"units"`
}

// record returns the units that the driver stopped, none if it stopped none.
func (s unitStopper) record() ([]string, error) {
	var r stoppedUnits
	_, err := s.file.read(&r)
	return r.Units, err
}

// down reports whether the driver stopped the units and they are still stopped.
func (s unitStopper) down(ctx context.Context) (bool, error) {
	units, err := s.record()
	if err != nil || len(units) == 0 {
		return false, err
	}
	for _, name := range units {
		if active, err := s.units.active(ctx, name); err != nil || active {
			return false, err
		}
	}
	return true, nil
}

// stop stops the units that are active.
func (s unitStopper) stop(ctx context.Context) error {
	units, err := s.record()
	if err != nil {
		return err
	}
	for _, name := range s.names {
		active, err := s.units.active(ctx, name)
		if err != nil {
			return err
		}
		if active && !slices.Contains(units, name) {
			units = append(units, name)
		}
	}
	if len(units) == 0 {
		return fmt.Errorf("cannot stop %s: no unit %s is active", s.what, s.names[len(s.names)-1])
	}
	if err := s.file.write(stoppedUnits{units}); err != nil {
		return err
	}
	for _, name := range units {
		if err := s.units.stopAndWait(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// restore starts the units that the driver stopped.
func (s unitStopper) restore(ctx context.Context) error {
	units, err := s.record()
	if err != nil || len(units) == 0 {
		return err
	}
	for _, name := range units {
		if err := s.units.startAndWait(ctx, name); err != nil {
			return err
		}
	}
	return s.file.write(stoppedUnits{})
}
