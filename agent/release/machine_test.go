package release

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// A binary of these tests is a text: a version, and how the binary behaves.
const (
	good    = "good"    // polls
	crashes = "crashes" // ends at once
	mute    = "mute"    // makes no successful poll
)

// step is the panic that ends a simulated process.
type step struct{ why string }

// killDisk kills the process at one change of the disk: before it, or after it if after is
// set. A write that is killed leaves a half.
type killDisk struct {
	disk.OS
	at, n int
	after bool
	fail  error // instead of a kill, every change fails
}

func (d *killDisk) change(do func() error) error {
	if d.fail != nil {
		return d.fail
	}
	d.n++
	if d.n == d.at && !d.after {
		panic(step{"killed"})
	}
	err := do()
	if d.n == d.at {
		panic(step{"killed"})
	}
	return err
}

func (d *killDisk) Create(path string) (f disk.File, err error) {
	err = d.change(func() error { f, err = d.OS.Create(path); return err })
	return killFile{f, d}, err
}
func (d *killDisk) Rename(from, to string) error {
	return d.change(func() error { return d.OS.Rename(from, to) })
}
func (d *killDisk) Remove(path string) error {
	return d.change(func() error { return d.OS.Remove(path) })
}
func (d *killDisk) SyncDir(string) error { return d.change(func() error { return nil }) }

type killFile struct {
	disk.File
	d *killDisk
}

func (f killFile) Write(b []byte) (n int, err error) {
	defer func() {
		if r := recover(); r != nil {
			if n == 0 {
				_, _ = f.File.Write(b[:len(b)/2])
			}
			panic(r)
		}
	}()
	err = f.d.change(func() error { n, err = f.File.Write(b); return err })
	return n, err
}
func (f killFile) Sync() error { return f.d.change(func() error { return nil }) }

// machine is a node with an installed agent and one open task.
type machine struct {
	t         *testing.T
	dir       string
	installed string
	key       ed25519.PrivateKey
	keys      []trust.VerifierKey
	binaries  map[string][]byte // what the server has, by digest
	task      task.Payload
	params    task.UpgradeParams
	fetches   int
	fetch     func(data []byte) ([]byte, error)

	running func() // called once before the task runs

	result *task.UpgradeResult
	err    error
	ran    []string // the versions that ran, one for each process
	polls  string   // the version of the newest process that made a successful poll
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	m := &machine{t: t, dir: t.TempDir(), key: private, binaries: map[string][]byte{}}
	m.installed = filepath.Join(m.dir, "installed")
	m.keys, err = trust.ParseReleaseKeys(base64.StdEncoding.EncodeToString(public))
	require.NoError(t, err)
	m.install("v1.0.0")
	return m
}

// install puts another package on the machine.
func (m *machine) install(version string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(m.installed, []byte(version+" "+good), 0o600))
}

// publish signs a binary of a version.
func (m *machine) publish(version, behavior string) string {
	m.t.Helper()
	data := []byte(version + " " + behavior)
	m.binaries[schema.SHA256Hex(data)] = data
	document, err := trust.SignRelease(trust.Release{V: 1, Version: version, Size: int64(len(data)), SHA256: schema.SHA256Hex(data)}, m.key)
	require.NoError(m.t, err)
	return string(document)
}

// order opens a task for a release.
func (m *machine) order(document string) {
	m.params = task.UpgradeParams{Release: document}
	m.task = task.Payload{TaskID: schema.NewID(), Type: task.AgentUpgrade}
	m.result, m.err = nil, nil
}

func (m *machine) over() bool { return m.result != nil || m.err != nil }

// boot runs one process until it ends or has nothing to do, and returns why.
func (m *machine) boot(d *killDisk) (end string) {
	m.t.Helper()
	s := disk.StateDir{Path: filepath.Join(m.dir, "state"), FS: d}
	require.NoError(m.t, os.MkdirAll(s.Path, 0o700))
	env, end := m.launch(s, []string{"A=b"})
	if end != "" {
		return end
	}
	defer func() {
		if r := recover(); r != nil {
			by, ok := r.(step)
			if !ok {
				panic(r)
			}
			end = by.why
		}
	}()
	running, err := RunningOf(env)
	require.NoError(m.t, err)
	path := m.installed
	if running.Release != "" {
		path = s.File(folder, running.Release)
	} else {
		running.Installed = m.installed
	}
	text, err := os.ReadFile(path)
	require.NoError(m.t, err)
	version, behavior, _ := strings.Cut(string(text), " ")
	m.ran = append(m.ran, version)
	if behavior == crashes {
		return "crashed"
	}
	u := Open(m.config(s, running, version))
	if behavior == mute {
		u.Polled(errors.New("no luck"))
		u.Watch(m.t.Context())
		return "watched"
	}
	u.Polled(nil)
	m.polls = version
	m.work(u)
	return "idle"
}

// launch returns the environment of the process that the launcher leaves: its own, or that of
// a release.
func (m *machine) launch(s disk.StateDir, env []string) (out []string, end string) {
	out = env
	defer func() {
		switch r := recover().(type) {
		case nil:
		case []string:
			out = r
		case step:
			end = r.why
		default:
			panic(r)
		}
	}()
	l := Launcher{State: s, Running: Running{Installed: m.installed}, Args: []string{"agent", "run"}, Env: env, Log: slog.New(slog.DiscardHandler),
		Exec: func(_ string, args, env []string) error {
			require.Equal(m.t, []string{"agent", "run"}, args)
			panic(env)
		}}
	require.NoError(m.t, l.Launch())
	return out, ""
}

func (m *machine) config(s disk.StateDir, r Running, version string) Config {
	return Config{
		State: s, Running: r, Version: version, Keys: func() []trust.VerifierKey { return m.keys }, Trial: time.Millisecond,
		Retry: wait.Range{Min: time.Millisecond, Max: time.Millisecond}, Jitter: func(time.Duration) time.Duration { return 0 }, Log: slog.New(slog.DiscardHandler),
		Restart: func() { panic(step{"restarted"}) },
		Fetch: func(_ context.Context, sum string, _ int64) ([]byte, error) {
			m.fetches++
			if m.fetch != nil {
				return m.fetch(m.binaries[sum])
			}
			return m.binaries[sum], nil
		},
		VersionOf: func(_ context.Context, path string) (string, error) {
			data, err := os.ReadFile(path)
			version, _, _ := strings.Cut(string(data), " ")
			return version, err
		},
	}
}

// work runs the open task, as the journal does at each start.
func (m *machine) work(u *Upgrade) {
	m.t.Helper()
	if m.over() || m.task.TaskID == "" {
		return
	}
	if m.running != nil {
		m.running()
		m.running = nil
	}
	params := m.params.Encode()
	require.NoError(m.t, Check(params))
	m.task.Params = params
	out, err := u.Run(m.t.Context(), execution.Task{Payload: m.task})
	if m.err = err; err == nil {
		m.result = new(out.(task.UpgradeResult))
	}
}

// finish boots, as a supervisor does, until the task is over and a process is idle.
func (m *machine) finish() {
	m.t.Helper()
	for range 20 {
		if m.boot(&killDisk{}) == "idle" && m.over() {
			return
		}
	}
	m.t.Fatalf("the task is not over; these ran: %v", m.ran)
}

func (m *machine) state() store {
	return newStore(disk.At(filepath.Join(m.dir, "state")))
}

// relabeled signs a binary of a version as another one.
func (m *machine) relabeled(version, as string) string {
	m.t.Helper()
	data := []byte(version + " " + good)
	m.binaries[schema.SHA256Hex(data)] = data
	document, err := trust.SignRelease(trust.Release{V: 1, Version: as, Size: int64(len(data)), SHA256: schema.SHA256Hex(data)}, m.key)
	require.NoError(m.t, err)
	return string(document)
}
