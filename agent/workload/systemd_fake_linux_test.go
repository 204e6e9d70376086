package workload

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>`

const systemdPath = "/org/freedesktop/systemd1"

// fakeUnit is a unit of fakeSystemd.
type fakeUnit struct {
	name    string
	slice   string
	state   string // ActiveState
	since   uint64 // µs
	ignores bool   // stops

	file     string // UnitFileState
	restarts uint32
}

// fakeSystemd is systemd on a bus of a real dbus-daemon, as far as the drivers call it.
type fakeSystemd struct {
	address string
	conn    *godbus.Conn

	mu    sync.Mutex
	units []*fakeUnit
	calls []string
	fails bool // each request
	// onGet is called before a property of a unit is read, under the lock.
	onGet func(unit string)
	jobs  uint32
}

// newFakeSystemd starts a bus with a systemd that has units. It needs
// dbus-daemon.
func newFakeSystemd(t *testing.T, units ...*fakeUnit) *fakeSystemd {
	t.Helper()
	program := need.Program(t, "dbus-daemon", "run: sh tools/need.sh host")
	folder := t.TempDir()
	f := &fakeSystemd{address: "unix:path=" + filepath.Join(folder, "bus"), units: units}
	config := filepath.Join(folder, "bus.conf")
	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(busConfig, "SOCKET", filepath.Join(folder, "bus"), 1)), 0o600))
	daemon := exec.Command(program, "--config-file="+config, "--nofork", "--nopidfile", "--print-address")
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := daemon.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, daemon.Start())
	t.Cleanup(func() {
		require.NoError(t, daemon.Process.Kill())
		_ = daemon.Wait() // it was killed
	})
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the bus is up")
	f.conn, err = f.connect(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.conn.Export(f, systemdPath, "org.freedesktop.systemd1.Manager"))
	require.NoError(t, f.conn.ExportSubtree(f, systemdPath+"/unit", "org.freedesktop.DBus.Properties"))
	answer, err := f.conn.RequestName("org.freedesktop.systemd1", godbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	require.Equal(t, godbus.RequestNameReplyPrimaryOwner, answer)
	return f
}

func (f *fakeSystemd) connect(ctx context.Context) (*godbus.Conn, error) {
	return godbus.Connect(f.address, godbus.WithContext(ctx))
}

// bus is a bus of a driver.
func (f *fakeSystemd) bus() bus {
	return bus{func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) { return f.connect(ctx) })
	}}
}

// set changes the fake under the lock.
func (f *fakeSystemd) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// seen returns the requests that changed something.
func (f *fakeSystemd) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// state returns the state of a unit, "" without one.
func (f *fakeSystemd) state(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u := f.find(name); u != nil {
		return u.state
	}
	return ""
}

// find returns a unit, nil if there is none. The caller holds the lock.
func (f *fakeSystemd) find(name string) *fakeUnit {
	i := slices.IndexFunc(f.units, func(u *fakeUnit) bool { return u.name == name })
	if i < 0 {
		return nil
	}
	return f.units[i]
}

// unitState is an entry of systemd's lists of units.
type unitState struct {
	Name, Description, LoadState, ActiveState, SubState, Followed string
	Path                                                          godbus.ObjectPath
	JobID                                                         uint32
	JobType                                                       string
	JobPath                                                       godbus.ObjectPath
}

func busFault(name string) *godbus.Error { return godbus.NewError(name, []any{"refused"}) }

// list returns the units that are accepted.
func (f *fakeSystemd) list(accepts func(*fakeUnit) bool) ([]unitState, *godbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails {
		return nil, busFault("org.freedesktop.DBus.Error.AccessDenied")
	}
	list := []unitState{}
	for _, u := range f.units {
		if accepts(u) {
			list = append(list, unitState{Name: u.name, LoadState: "loaded", ActiveState: u.state, Path: "/", JobPath: "/"})
		}
	}
	return list, nil
}

// ListUnitsByPatterns is a method of systemd.
func (f *fakeSystemd) ListUnitsByPatterns(states, patterns []string) ([]unitState, *godbus.Error) {
	return f.list(func(u *fakeUnit) bool {
		return slices.Contains(states, u.state) && slices.ContainsFunc(patterns, func(p string) bool {
			ok, err := path.Match(p, u.name)
			return ok && err == nil
		})
	})
}

// ListUnitsByNames is a method of systemd.
func (f *fakeSystemd) ListUnitsByNames(names []string) ([]unitState, *godbus.Error) {
	return f.list(func(u *fakeUnit) bool { return slices.Contains(names, u.name) })
}

// StopUnit is a method of systemd.
func (f *fakeSystemd) StopUnit(name, mode string) (godbus.ObjectPath, *godbus.Error) {
	return f.job("stop", name, mode, "inactive")
}

// StartUnit is a method of systemd.
func (f *fakeSystemd) StartUnit(name, mode string) (godbus.ObjectPath, *godbus.Error) {
	return f.job("start", name, mode, "active")
}

// job runs a job of a unit and sends the signal of its end.
func (f *fakeSystemd) job(verb, name, mode, state string) (godbus.ObjectPath, *godbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.find(name)
	if u == nil || f.fails {
		return "", busFault(busNoSuchUnit)
	}
	f.calls = append(f.calls, verb+" "+mode+" "+name)
	f.jobs++
	job := godbus.ObjectPath(systemdPath + "/job/1")
	if u.state = state; u.ignores {
		u.state = "deactivating"
		return job, nil
	}
	if err := f.conn.Emit(systemdPath, "org.freedesktop.systemd1.Manager.JobRemoved", f.jobs, job, name, "done"); err != nil {
		return "", godbus.MakeFailedError(err)
	}
	return job, nil
}

// KillUnit is a method of systemd.
func (f *fakeSystemd) KillUnit(name, who string, signal int32) *godbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.find(name)
	if u == nil {
		return busFault(busNoSuchUnit)
	}
	f.calls = append(f.calls, "kill "+who+" "+syscall.Signal(signal).String()+" "+name)
	u.state = "inactive"
	return nil
}

// Get is a method of a unit.
func (f *fakeSystemd) Get(m godbus.Message, iface, property string) (godbus.Variant, *godbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, _ := m.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
	i := slices.IndexFunc(f.units, func(u *fakeUnit) bool { return path.Base(string(at)) == dbus.PathBusEscape(u.name) })
	if i >= 0 && f.onGet != nil {
		f.onGet(f.units[i].name)
		i = slices.IndexFunc(f.units, func(u *fakeUnit) bool { return path.Base(string(at)) == dbus.PathBusEscape(u.name) })
	}
	if i < 0 {
		return godbus.Variant{}, busFault(busUnknownObject)
	}
	switch u := f.units[i]; {
	case property == "Slice" && (iface == "org.freedesktop.systemd1.Service") == strings.HasSuffix(u.name, ".service"):
		return godbus.MakeVariant(u.slice), nil
	case property == "UnitFileState" && iface == "org.freedesktop.systemd1.Unit":
		return godbus.MakeVariant(u.file), nil
	case property == "NRestarts" && iface == "org.freedesktop.systemd1.Service" && strings.HasSuffix(u.name, ".service"):
		return godbus.MakeVariant(u.restarts), nil
	case property == "ActiveEnterTimestamp" && iface == "org.freedesktop.systemd1.Unit":
		return godbus.MakeVariant(u.since), nil
	}
	return godbus.Variant{}, busFault("org.freedesktop.DBus.Error.UnknownProperty")
}
