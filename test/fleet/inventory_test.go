package fleet

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// fakeAdmin is an admin API with as much memory as the fleet's calls need.
type fakeAdmin struct {
	mu     sync.Mutex
	nodes  map[string]*wire.NodeView // by host
	calls  []string                  // "VERB host"
	keys   map[string]string         // of the running enrollment, by node
	busy   int                       // answers 503 that many times
	refuse string                    // a host that is refused
}

func (d *fakeAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var answer any
	err := error(schema.NewError(schema.KindServiceUnavailable, "busy"))
	if d.busy == 0 || r.Method == http.MethodGet {
		answer, err = d.answer(r)
	} else {
		d.busy--
	}
	if err != nil {
		e := schema.AsError(err)
		w.WriteHeader(e.Kind.Info().HTTP)
		json.NewEncoder(w).Encode(e.Body("c")) //nolint:errcheck // the client reports it
		return
	}
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // the client reports it
}

func (d *fakeAdmin) answer(r *http.Request) (any, error) {
	if r.Header.Get("Authorization") != "Bearer secret" {
		return nil, schema.NewError(schema.KindUnauthenticated, "no token")
	}
	verb := path.Base(r.URL.Path)
	if verb == "nodes" && r.Method == http.MethodGet {
		var list wire.NodeList
		for _, n := range d.nodes {
			list.Nodes = append(list.Nodes, *n)
		}
		return list, nil
	}
	if verb == "nodes" {
		var in wire.RegisterNodeRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, err
		}
		if in.Host == d.refuse {
			return nil, schema.NewError(schema.KindInvalidRequest, "no such SKU").WithReason("sku_unknown")
		}
		d.calls = append(d.calls, "register "+in.Host)
		d.nodes[in.Host] = &wire.NodeView{ID: schema.NewID(), Host: in.Host, SKU: in.SKU, State: lifecycle.NodeRegistered}
		return d.nodes[in.Host], nil
	}
	var in wire.LifecycleRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	return d.act(verb, path.Base(path.Dir(r.URL.Path)), r.Header.Get(wire.HeaderIdempotencyKey))
}

func (d *fakeAdmin) act(verb, id, key string) (any, error) {
	for _, n := range d.nodes {
		if n.ID != id {
			continue
		}
		d.calls = append(d.calls, verb+" "+n.Host)
		if verb == "reissue-enrollment" {
			return wire.LifecycleResponse{RecoveryBundle: &wire.RecoveryBundle{BootstrapBundle: bundle(id)}}, nil
		}
		if used := d.keys[id]; used != "" && used != key {
			return nil, schema.NewError(schema.KindOperationInProgress, "another enrollment runs")
		}
		d.keys[id], n.State = key, lifecycle.NodeEnrolling
		b := bundle(id)
		return wire.LifecycleResponse{BootstrapBundle: &b}, nil
	}
	return nil, schema.NewError(schema.KindNotFound, "no such node")
}

func bundle(id string) trust.BootstrapBundle {
	token, _, _ := trust.NewToken()
	return trust.BootstrapBundle{NodeID: id, EnrollmentToken: token, APIURL: "https://api.internal", Env: "test",
		TaskSigningPubkeys: "active:k1:" + base64.StdEncoding.EncodeToString(make([]byte, 32)), CABundlePEM: "ca", NodeCertCABundlePEM: "node-ca"}
}

// newFakeAdmin is a fakeAdmin with an inventory at it.
func newFakeAdmin(t *testing.T, size int) (*fakeAdmin, func() (map[int]agent.Config, *nodeInventory, error)) {
	t.Helper()
	d := &fakeAdmin{nodes: map[string]*wire.NodeView{}, keys: map[string]string{}}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	c := Config{Size: size, State: t.TempDir(), Prefix: "f", SKU: "cpu-dev", Region: "local"}
	return d, func() (map[int]agent.Config, *nodeInventory, error) {
		var mu sync.Mutex
		ready := map[int]agent.Config{}
		v := &nodeInventory{conf: c, admin: newAdmin(server.URL, "secret"), ready: func(i int, c agent.Config) {
			mu.Lock()
			defer mu.Unlock()
			ready[i] = c
		}}
		d.mu.Lock()
		d.calls = nil
		d.mu.Unlock()
		err := v.run(t.Context())
		return ready, v, err
	}
}

func TestRegisterAndEnrollMissingNodes(t *testing.T) {
	t.Parallel()
	d, run := newFakeAdmin(t, 3)
	d.busy = 2 // what may succeed later is tried again
	ready, _, err := run()
	require.NoError(t, err)
	require.Len(t, ready, 3)
	require.NotEmpty(t, ready[0].EnrollmentToken)
	require.Equal(t, "f-0003", d.nodes["f-0003"].Host)

	// Stopped before its agent enrolled: the same operation continues.
	ready, _, err = run()
	require.NoError(t, err)
	require.Len(t, ready, 3)
	slices.Sort(d.calls)
	require.Equal(t, []string{"enroll f-0001", "enroll f-0002", "enroll f-0003"}, d.calls)

	// With an identity there is nothing to ask for.
	for i, c := range ready {
		require.NoError(t, os.WriteFile(c.CertPath, []byte("cert"), 0o600))
		d.nodes[fmt.Sprintf("f-%04d", i+1)].State = lifecycle.NodeActive
	}
	ready, _, err = run()
	require.NoError(t, err)
	require.Empty(t, d.calls)
	require.Empty(t, ready[0].EnrollmentToken)
	require.Equal(t, d.nodes["f-0001"].ID, ready[0].NodeID)

	// One that lost its state gets another identity; one that belongs to another
	// installation starts over.
	require.NoError(t, os.RemoveAll(strings.TrimSuffix(ready[1].CertPath, "/cert.pem")))
	d.nodes["f-0003"] = &wire.NodeView{ID: schema.NewID(), Host: "f-0003", State: lifecycle.NodeRegistered}
	ready, _, err = run()
	require.NoError(t, err)
	slices.Sort(d.calls)
	require.Equal(t, []string{"enroll f-0003", "reissue-enrollment f-0002"}, d.calls)
	require.Equal(t, d.nodes["f-0003"].ID, ready[2].NodeID)
}

func TestSkipUnpreparedNodes(t *testing.T) {
	t.Parallel()
	d, run := newFakeAdmin(t, 3)
	d.nodes["f-0001"] = &wire.NodeView{ID: schema.NewID(), Host: "f-0001", State: lifecycle.NodeRemoved}
	d.refuse = "f-0002"
	ready, v, err := run()
	require.NoError(t, err)
	require.Len(t, ready, 1)
	prepared, left, why := v.state()
	require.Equal(t, 1, prepared)
	require.Equal(t, 2, left)
	require.Error(t, why)

	d.nodes["f-0003"].State = lifecycle.NodeRemoved
	_, _, err = run()
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "without any node there is no fleet")
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	held, err := lock(Config{State: state, Prefix: "taken"})
	require.NoError(t, err)
	t.Cleanup(func() { held.Close() })
	closed := httptest.NewServer(nil)
	closed.Close()
	for name, c := range map[string]struct {
		args, says string
		code       int
	}{
		"no size":         {"", "missing argument N", schema.ExitUsage},
		"two sizes":       {"3 4", "unexpected argument", schema.ExitUsage},
		"no number":       {"many", "want a number", schema.ExitUsage},
		"unknown flag":    {"3 --fast", "fast", schema.ExitUsage},
		"misbehavior":     {"3 --misbehave lazy=1", "is not a misbehavior", schema.ExitUsage},
		"too many":        {"--misbehave slow=4 3", "exceed the fleet", schema.ExitUsage},
		"faults at once":  {"0 --prefix A_B", "--prefix", schema.ExitUsage},
		"runs already":    {"3 --prefix taken", "another fleet taken runs", schema.ExitRefused},
		"files":           {"20000", "", schema.ExitUnreachable},
		"no server":       {"3", "does not respond", schema.ExitUnreachable},
		"help":            {"--help", "", schema.ExitDone},
		"help after size": {"3 -h", "", schema.ExitDone},
	} {
		if name == "files" && raiseFileLimit(MaxSize) != nil {
			c.says, c.code = "open files", schema.ExitRefused
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, stderr strings.Builder
			env := map[string]string{"GPUAAS_API_URL": closed.URL, "GPUAAS_API_TOKEN": "secret"}
			args := append(strings.Fields(c.args), "--state", state)
			code := Main(t.Context(), args, func(k string) string { return env[k] }, &out, &stderr)
			require.Equal(t, c.code, code, stderr.String())
			require.Contains(t, stderr.String(), c.says)
		})
	}
}

func TestRestartsSpread(t *testing.T) {
	t.Parallel()
	m := newMember(Config{RestartAfter: time.Minute}, agent.Config{}, Dies, &tally{})
	require.GreaterOrEqual(t, m.downtime(errDied), 30*time.Second)
	require.Less(t, m.downtime(errSilenced), time.Second)
	require.Less(t, m.downtime(errFlapped), time.Second)
	require.GreaterOrEqual(t, m.downtime(nil), brokenPause/2)
}
