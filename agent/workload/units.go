package workload

import (
	"context"
	"fmt"
	"os"

	"github.com/coreos/go-systemd/v22/dbus"
)

// Units calls systemd about units that are no workloads, such as the services of the GPU driver.
type Units struct{ bus bus }

// NewUnits makes the units of this machine's systemd. It makes no call.
func NewUnits() Units { return Units{systemBus()} }

// Present reports whether systemd runs this machine.
func (Units) Present() bool {
	_, err := os.Lstat("/run/systemd/system") // as sd_booted(3)
	return err == nil
}

// UnitState is the state of an installed unit.
type UnitState struct {
	Name           string
	Active, Failed bool
	// Enabled is set if the unit starts with the machine.
	Enabled bool
	// Restarts counts the restarts of a service by systemd.
	Restarts uint32
}

// States returns the states of those of the units that are installed.
func (u Units) States(ctx context.Context, names ...string) (list []UnitState, err error) {
	err = u.bus.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		found, err := conn.ListUnitsByNamesContext(ctx, names)
		if err != nil {
			return fmt.Errorf("cannot list the units of systemd: %w", err)
		}
		for _, s := range found {
			if s.LoadState != "loaded" {
				continue
			}
			state := UnitState{Name: s.Name, Failed: s.ActiveState == "failed", Active: s.ActiveState == "active" || s.ActiveState == "reloading"}
			file, err := conn.GetUnitPropertyContext(ctx, s.Name, "UnitFileState")
			if err != nil {
				return fmt.Errorf("cannot read the properties of unit %s: %w", s.Name, err)
			}
			enabled := ""
			if err := file.Value.Store(&enabled); err != nil {
				return err
			}
			state.Enabled = enabled == "enabled" || enabled == "enabled-runtime"
			restarts, err := conn.GetUnitTypePropertyContext(ctx, s.Name, "Service", "NRestarts")
			if err := unlessBusError(err, busNoSuchUnit, busUnknownObject, busUnknownInterface); err != nil {
				return fmt.Errorf("cannot read the properties of unit %s: %w", s.Name, err)
			}
			if err == nil {
				if err := restarts.Value.Store(&state.Restarts); err != nil {
					return err
				}
			}
			list = append(list, state)
		}
		return nil
	})
	return list, err
}

// Active reports whether a unit is active or about to be. A unit that does not exist is not.
func (u Units) Active(ctx context.Context, name string) (bool, error) { return u.bus.active(ctx, name) }

// Stop stops a unit and returns when it has stopped.
func (u Units) Stop(ctx context.Context, name string) error { return u.bus.stopAndWait(ctx, name) }

// Start starts a unit and returns when it is active.
func (u Units) Start(ctx context.Context, name string) error { return u.bus.startAndWait(ctx, name) }

// Reboot makes systemd stop everything and restart the machine. It returns when systemd has begun.
func (u Units) Reboot(ctx context.Context) error {
	return u.bus.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		if _, err := conn.StartUnitContext(ctx, "reboot.target", "replace-irreversibly", nil); err != nil {
			return fmt.Errorf("cannot start reboot.target: %w", err)
		}
		return nil
	})
}
