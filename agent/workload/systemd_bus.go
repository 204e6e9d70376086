package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Names of D-Bus errors that say that a unit does not exist or does not run.
const (
	busNoSuchUnit    = "org.freedesktop.systemd1.NoSuchUnit"
	busNoSuchProcess = "org.freedesktop.systemd1.NoSuchProcess"
	busUnknownObject = "org.freedesktop.DBus.Error.UnknownObject"
	// busUnknownInterface is the error for a property that the kind of unit does not have.
	busUnknownInterface = "org.freedesktop.DBus.Error.UnknownInterface"
)

// bus calls systemd through D-Bus. Each call has a connection of its own, so that a bus that
// was restarted needs no special care.
type bus struct {
	dial func(context.Context) (*dbus.Conn, error)
}

// systemBus is the system bus. Without one, it is systemd's private socket.
func systemBus() bus { return bus{dbus.NewWithContext} }

// unit is a unit of systemd that is not inactive.
type unit struct {
	name     string
	slice    string
	since    time.Time // zero if it is unknown
	stopping bool
}

// do makes calls within a bounded time.
func (b bus) do(ctx context.Context, calls func(context.Context, *dbus.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	conn, err := b.dial(ctx)
	if err != nil {
		return fmt.Errorf("cannot reach systemd through D-Bus: %w", err)
	}
	defer conn.Close()
	return calls(ctx, conn)
}

// unlessBusError returns nil instead of an error of D-Bus with one of the names.
func unlessBusError(err error, names ...string) error {
	if e, ok := errors.AsType[godbus.Error](err); ok && slices.Contains(names, e.Name) {
		return nil
	}
	return err
}

// running returns the services and scopes that are not inactive and whose slice is accepted.
// One that ends meanwhile is not part of it.
func (b bus) running(ctx context.Context, accepts func(slice string) bool) ([]unit, error) {
	var list []unit
	err := b.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		states := []string{"active", "activating", "reloading", "deactivating"}
		for kind, pattern := range map[string]string{"Service": "*.service", "Scope": "*.scope"} {
			found, err := conn.ListUnitsByPatternsContext(ctx, states, []string{pattern})
			if err != nil {
				return fmt.Errorf("cannot list the units of systemd: %w", err)
			}
			for _, s := range found {
				u, err := describe(ctx, conn, kind, s)
				if err != nil {
					return fmt.Errorf("cannot read the properties of unit %s: %w", s.Name, err)
				}
				if accepts(u.slice) {
					list = append(list, u)
				}
			}
		}
		return nil
	})
	return list, err
}

// describe returns the properties of a unit. A unit that systemd dropped has no slice.
func describe(ctx context.Context, conn *dbus.Conn, kind string, s dbus.UnitStatus) (unit, error) {
	u := unit{name: s.Name, stopping: s.ActiveState == "deactivating" || s.JobType == "stop"}
	slice, err := conn.GetUnitTypePropertyContext(ctx, s.Name, kind, "Slice")
	if err != nil {
		return u, unlessBusError(err, busNoSuchUnit, busUnknownObject)
	}
	since, err := conn.GetUnitPropertyContext(ctx, s.Name, "ActiveEnterTimestamp")
	if err != nil {
		return u, unlessBusError(err, busNoSuchUnit, busUnknownObject)
	}
	if err := slice.Value.Store(&u.slice); err != nil {
		return u, err
	}
	var us uint64
	if err := since.Value.Store(&us); err != nil {
		return u, err
	}
	if us > 0 {
		u.since = time.UnixMicro(int64(us)).UTC()
	}
	return u, nil
}

// stop asks a unit to stop and does not wait. A unit that does not exist is not an error.
func (b bus) stop(ctx context.Context, name string) error {
	return b.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		_, err := conn.StopUnitContext(ctx, name, "replace", nil)
		return unlessBusError(err, busNoSuchUnit)
	})
}

// kill ends all processes of a unit by force. It asks the unit to stop first, so that
// systemd does not start it again.
func (b bus) kill(ctx context.Context, name string) error {
	return b.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		if _, err := conn.StopUnitContext(ctx, name, "replace", nil); err != nil {
			return unlessBusError(err, busNoSuchUnit)
		}
		err := conn.KillUnitWithTarget(ctx, name, dbus.All, int32(syscall.SIGKILL))
		return unlessBusError(err, busNoSuchUnit, busNoSuchProcess)
	})
}

// active reports whether a unit is active or about to be. A unit that does not exist is not.
func (b bus) active(ctx context.Context, name string) (active bool, err error) {
	err = b.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		list, err := conn.ListUnitsByNamesContext(ctx, []string{name})
		active = slices.ContainsFunc(list, func(s dbus.UnitStatus) bool { return s.ActiveState != "inactive" && s.ActiveState != "failed" })
		return err
	})
	return active, err
}

// stopAndWait stops a unit and returns when it has stopped.
func (b bus) stopAndWait(ctx context.Context, name string) error {
	return b.wait(ctx, "stop", name, (*dbus.Conn).StopUnitContext)
}

// startAndWait starts a unit and returns when it is active.
func (b bus) startAndWait(ctx context.Context, name string) error {
	return b.wait(ctx, "start", name, (*dbus.Conn).StartUnitContext)
}

// wait begins a job of systemd and waits for its end.
func (b bus) wait(ctx context.Context, verb, name string,
	begin func(c *dbus.Conn, ctx context.Context, name, mode string, done chan<- string) (int, error),
) error {
	return b.do(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		done := make(chan string, 1)
		if _, err := begin(conn, ctx, name, "replace", done); err != nil {
			return fmt.Errorf("cannot %s %s: %w", verb, name, err)
		}
		select {
		case result := <-done:
			if result != "done" {
				return fmt.Errorf("cannot %s %s: the job of systemd ended as %s", verb, name, result)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("cannot %s %s: %w", verb, name, ctx.Err())
		}
	})
}
