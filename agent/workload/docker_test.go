package workload

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
)

// dockerAt makes a driver of the daemon behind a socket, with records in a folder.
func dockerAt(t *testing.T, socket, folder string) *dockerDriver {
	t.Helper()
	made, err := NewDocker(Config{
		Label: DefaultLabel, DockerHost: "unix://" + socket, State: disk.At(folder), Changed: func() {},
		Cordoned: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	d, ok := made.(*dockerDriver)
	require.True(t, ok)
	return d
}

func names(list []task.Workload) []string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = w.Name
	}
	return out
}

func listed(t *testing.T, d Driver) []task.Workload {
	t.Helper()
	list, err := d.List(t.Context())
	require.NoError(t, err)
	return list
}

func always() restartPolicy { return restartPolicy{Name: "always"} }

func TestDockerDriver(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "aaa", name: "train", stopSignal: "SIGINT", ignores: true})
	folder := t.TempDir()
	d := dockerAt(t, f.socket, folder)
	since := time.Date(2024, 5, 3, 10, 0, 1, 500_000_000, time.UTC)
	require.Equal(t, []task.Workload{{Name: "train", Kind: "docker", Since: since}}, listed(t, d))

	require.NoError(t, d.Stop(t.Context(), "train"))
	require.NoError(t, d.Stop(t.Context(), "absent"))
	d = dockerAt(t, f.socket, folder) // after a crash
	require.NoError(t, d.Stop(t.Context(), "train"))
	require.Equal(t, []string{"containers/aaa/kill signal=SIGINT"}, f.seen(), "once, with the image's signal")
	require.True(t, listed(t, d)[0].Stopping)
	require.NoError(t, d.Kill(t.Context(), "train"))
	require.Equal(t, "containers/aaa/kill signal=SIGKILL", f.seen()[1])

	// A container that is gone is forgotten: after a manual restart it can be stopped.
	require.Empty(t, listed(t, d))
	f.change("train", func(c *fakeContainer) { c.running = true })
	require.False(t, listed(t, dockerAt(t, f.socket, folder))[0].Stopping)
}

// TestDockerOnlyLabeled: a running container without the label is no workload.
func TestDockerOnlyLabeled(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "aaa", name: "exporter"})
	f.change("exporter", func(c *fakeContainer) { c.label = "other" })
	d := dockerAt(t, f.socket, t.TempDir())
	require.Empty(t, listed(t, d))
	require.NoError(t, d.Stop(t.Context(), "exporter"))
	require.NoError(t, d.Kill(t.Context(), "exporter"))
	require.Empty(t, f.seen())
}

// TestDockerRestartingFirst: a drain stops the containers first that the daemon would start
// again, and none of them is started again.
func TestDockerRestartingFirst(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t,
		&fakeContainer{id: "a1", name: "a-once"},
		&fakeContainer{id: "b1", name: "b-always", policy: always()},
		&fakeContainer{id: "c1", name: "c-unless", policy: restartPolicy{Name: "unless-stopped"}},
	)
	d := dockerAt(t, f.socket, t.TempDir())
	require.Equal(t, []string{"b-always", "c-unless", "a-once"}, names(listed(t, d)))
	out, err := Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Minute)}))
	require.NoError(t, err)
	require.Equal(t, task.DrainResult{Stopped: []string{"a-once", "b-always", "c-unless"}}, out)
	require.Equal(t, []string{
		"containers/b1/update ", "containers/b1/kill signal=SIGTERM",
		"containers/c1/update ", "containers/c1/kill signal=SIGTERM", "containers/a1/kill signal=SIGTERM",
	}, f.seen())
	require.Equal(t, 1, f.get("b-always").starts, "the daemon did not start it again")
}

// TestDockerVanishes: a container that ends between the list and the next request is not an
// error, and the list does not have it.
func TestDockerVanishes(t *testing.T) {
	t.Parallel()
	for name, suffix := range map[string]string{"before inspect": "/json", "before update": "/update", "before kill": "/kill"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()}, &fakeContainer{id: "b1", name: "b"})
			d := dockerAt(t, f.socket, t.TempDir())
			f.intercept(func(_, path string) int {
				if strings.HasSuffix(path, "a1"+suffix) {
					f.change("a", func(c *fakeContainer) { c.id, c.running = "another", false })
				}
				return 0
			})
			require.NoError(t, d.Stop(t.Context(), "a"))
			require.Equal(t, []string{"b"}, names(listed(t, d)))
		})
	}
}

// TestDockerEndsBeforeKill: a container that ended before its signal is not an error.
func TestDockerEndsBeforeKill(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a"})
	d := dockerAt(t, f.socket, t.TempDir())
	f.intercept(func(_, path string) int {
		if strings.HasSuffix(path, "/kill") {
			f.change("a", func(c *fakeContainer) { c.running = false })
		}
		return 0
	})
	require.NoError(t, d.Stop(t.Context(), "a"))
	require.NoError(t, d.Kill(t.Context(), "a"))
}

// TestDockerStatusWritesNothing: the status command lists from a second process and
// must not change the records of the agent that runs.
func TestDockerStatusWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
	folder := t.TempDir()
	require.NoError(t, dockerAt(t, f.socket, folder).Stop(t.Context(), "a"))
	read := func() (all string) {
		for _, name := range []string{"docker-stops.json", "docker-policies.json"} {
			data, err := os.ReadFile(filepath.Join(folder, name))
			require.NoError(t, err)
			all += string(data)
		}
		return all
	}
	before := read()
	made, err := NewDocker(Config{Label: DefaultLabel, DockerHost: "unix://" + f.socket, State: disk.At(folder), ReadOnly: true, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Empty(t, listed(t, made))
	require.Equal(t, before, read())
}

// TestDockerListKeepsNewMarks: a list that began before a stop does not drop the stop's
// mark, or the container would receive a second signal.
func TestDockerListKeepsNewMarks(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", ignores: true})
	f.change("a", func(c *fakeContainer) { c.running = false })
	d := dockerAt(t, f.socket, t.TempDir())
	held, release := make(chan struct{}), make(chan struct{})
	first := true
	f.intercept(func(_, path string) int {
		if first && path == "/_ping" {
			first = false
			close(held)
			<-release
		}
		return 0
	})
	listed := make(chan error, 1)
	go func() {
		_, err := d.List(t.Context())
		listed <- err
	}()
	<-held
	f.intercept(nil)
	f.change("a", func(c *fakeContainer) { c.running = true })
	require.NoError(t, d.Stop(t.Context(), "a"))
	f.change("a", func(c *fakeContainer) { c.running = false }) // the list does not have it
	close(release)
	require.NoError(t, <-listed)
	f.change("a", func(c *fakeContainer) { c.running = true })
	require.NoError(t, d.Stop(t.Context(), "a"))
	require.Equal(t, []string{"containers/a1/kill signal=SIGTERM"}, f.seen())
}

// TestDockerUnavailable: without the daemon, nothing is listed and nothing is stopped, and
// the error says why.
func TestDockerUnavailable(t *testing.T) {
	t.Parallel()
	d := dockerAt(t, filepath.Join(t.TempDir(), "absent.sock"), t.TempDir())
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "cannot reach the Docker daemon: dial unix")
	require.Error(t, d.Stop(t.Context(), "a"))
	require.Error(t, d.Kill(t.Context(), "a"))
	require.NoError(t, d.Restore(t.Context()), "nothing is recorded")
}

// TestDockerUnexpectedAnswers: an answer that is not dockerd's is an error and no empty list.
func TestDockerUnexpectedAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"no JSON": "nonsense", "no list": `{"Id":"a"}`, "no ID": `[{"Names":["/a"]}]`, "no name": `[{"Id":"a1"}]`,
		"another container": `[{"Id":"../../images","Names":["/a"]}]`, "too large": `["` + strings.Repeat("x", commandBytes) + `"]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "docker.sock")
			l, err := net.Listen("unix", socket)
			require.NoError(t, err)
			s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.41")
				if strings.HasSuffix(r.URL.Path, "/containers/json") {
					_, _ = w.Write([]byte(answer)) // the client may have hung up
					return
				}
				_, _ = w.Write([]byte(`{"Id":"x","Name":"/x"}`))
			})}
			go func() { _ = s.Serve(l) }() // ends with Close
			t.Cleanup(func() { _ = s.Close() })
			list, err := dockerAt(t, socket, t.TempDir()).List(t.Context())
			require.Error(t, err)
			require.Nil(t, list)
		})
	}
}

// TestDockerVersions: the driver asks in the newest version that both have.
func TestDockerVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"1.24": "/v1.24", "1.41": "/v1.41", "1.99": "/v1.56"} {
		f := newFakeDocker(t)
		f.set(func() { f.version = version })
		api, err := newDockerAPI(f.socket).connect(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, api.prefix)
	}
	for _, bad := range []string{"", "2.0", "1", "1.x"} {
		f := newFakeDocker(t)
		f.set(func() { f.version = bad })
		_, err := newDockerAPI(f.socket).connect(t.Context())
		require.ErrorContains(t, err, "unexpected API version")
	}
}

func TestDockerSocket(t *testing.T) {
	t.Parallel()
	path, err := DockerSocket(DefaultDockerHost)
	require.NoError(t, err)
	require.Equal(t, "/var/run/docker.sock", path)
	for _, bad := range []string{"", "tcp://10.0.0.1:2375", "ssh://node", "unix://run/docker.sock", "/var/run/docker.sock"} {
		_, err := DockerSocket(bad)
		require.ErrorContains(t, err, "DOCKER_HOST", bad)
	}
}

// TestDockerHostileText: what containers and the daemon name themselves reaches neither
// another path of the API nor a log unchanged.
func TestDockerHostileText(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", stopSignal: "SIGTERM&signal=SIGKILL#/../x"})
	d := dockerAt(t, f.socket, t.TempDir())
	for _, name := range []string{"", "/", "../a", "a\n", "a%00", "--all"} {
		require.NoError(t, d.Stop(t.Context(), name))
	}
	require.Empty(t, f.seen())
	require.NoError(t, d.Stop(t.Context(), "a"))
	require.Equal(t, []string{"containers/a1/kill signal=SIGTERM%26signal%3DSIGKILL%23%2F..%2Fx"}, f.seen())
	raw, err := json.Marshal(map[string]string{"message": "no\x00\xff" + strings.Repeat("x", 1000)})
	require.NoError(t, err)
	message := messageOf(raw)
	require.Less(t, len(message), 300)
	require.NotContains(t, message, "\x00")
}
