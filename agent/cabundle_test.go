package agent

import (
	"crypto/tls"
	"encoding/pem"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// rotating is a server whose certificate can be replaced while it runs.
func rotating(t *testing.T) (f *fakeAPI, show func(authority)) {
	t.Helper()
	f = newFakeAPI(t)
	var conf atomic.Pointer[tls.Config]
	show = func(ca authority) {
		c := f.srv.TLS.Clone()
		c.GetConfigForClient, c.Certificates = nil, []tls.Certificate{ca.server(t)}
		conf.Store(c)
	}
	show(f.server)
	f.srv.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return conf.Load(), nil }
	return f, show
}

func (f *fakeAPI) updateTrust(seq int64) task.Result {
	f.t.Helper()
	p := f.payload(task.UpdateTrust, seq, nil)
	f.offers <- f.offerOf(p, 1)
	return f.result(p.TaskID)
}

// cut ends all connections, and returns when the agent polls over a new one and no
// older poll is left that could take an offer with it.
func (f *fakeAPI) cut() {
	f.t.Helper()
	n := f.count("wait")
	f.srv.CloseClientConnections()
	f.until("a poll over a new connection", func() bool { return f.counts["wait"] > n && f.open == 1 })
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// The server's bundles are taken, and used from the next poll: the node follows
// a server whose CA was replaced, step by step.
func TestUpdateTrustTakesTheBundles(t *testing.T) {
	t.Parallel()
	f, show := rotating(t)
	next, nodes := newAuthority(t, "next server ca"), newAuthority(t, "next node ca")
	both := append(append([]byte{}, f.server.pem...), next.pem...)
	answer := trustOf(both, append(append([]byte{}, nodes.pem...), f.nodes.pem...))
	f.onTrust = func() (out trust.NodeTrust, err error) {
		f.note(func() { out = answer })
		return out, nil
	}
	c := f.config()
	start(t, c, Deps{})
	r := f.updateTrust(1)
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	got := decode[trust.TrustResult](t, r.Output)
	require.Equal(t, answer.CABundleFingerprint, got.CABundleFingerprint)
	require.Equal(t, answer.NodeCertCABundleFingerprint, got.NodeCertCABundleFingerprint)
	require.Equal(t, string(both), content(t, c.CABundlePath))
	require.Equal(t, answer.NodeCertCABundlePEM, content(t, c.NodeCABundlePath))

	show(next)
	f.cut()
	f.note(func() { answer = trustOf(next.pem, nodes.pem) })
	r = f.updateTrust(2)
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	require.Equal(t, string(next.pem), content(t, c.CABundlePath), "the old one is not needed any more")
	f.cut()
	require.Equal(t, task.Succeeded, f.updateTrust(3).Status)
}

// A bundle that would lock the node out, or that is none, is refused and changes
// nothing on the node.
func TestUpdateTrustRefusesBundles(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	next := newAuthority(t, "next server ca")
	good := trustOf(f.server.pem, f.nodes.pem)
	changed := func(change func(*trust.NodeTrust)) trust.NodeTrust {
		t := good
		change(&t)
		return t
	}
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
	var answer atomic.Pointer[trust.NodeTrust]
	f.onTrust = func() (trust.NodeTrust, error) { return *answer.Load(), nil }
	newChain(t, f)
	c := f.config()
	start(t, c, Deps{})
	seq := int64(0)
	for name, tc := range map[string]struct {
		trust  trust.NodeTrust
		reason string
	}{
		"a CA that the server is not of": {trustOf(next.pem, f.nodes.pem), bundleLocksOut},
		"the node CA for the server's":   {trustOf(f.nodes.pem, f.nodes.pem), bundleLocksOut},
		"another fingerprint":            {changed(func(t *trust.NodeTrust) { t.CABundleFingerprint = strings.Repeat("0", 64) }), bundleMalformed},
		"nothing":                        {trustOf(nil, f.nodes.pem), bundleMalformed},
		"no node CA":                     {trustOf(f.server.pem, nil), bundleMalformed},
		"text behind":                    {changed(func(t *trust.NodeTrust) { t.CABundlePEM += "x" }), bundleMalformed},
		"a key in it":                    {changed(func(t *trust.NodeTrust) { t.NodeCertCABundlePEM += key }), bundleMalformed},
	} {
		answer.Store(&tc.trust)
		seq++
		r := f.updateTrust(seq)
		require.Equal(t, task.Failed, r.Status, name)
		require.Equal(t, schema.KindTaskFailed, r.Code, name)
		require.True(t, strings.HasPrefix(r.Message, tc.reason+": "), "%s: %s", name, r.Message)
		require.Equal(t, string(f.server.pem), content(t, c.CABundlePath), name)
		require.Equal(t, string(f.nodes.pem), content(t, c.NodeCABundlePath), name)
	}
	require.GreaterOrEqual(t, f.count("verifier-sets"), int(seq), "the verifier sets are asked for all the same")
	answer.Store(&good)
	require.Equal(t, task.Succeeded, f.updateTrust(seq+1).Status)
}

// halfFile takes half of what is written.
type halfFile struct{ File }

func (h halfFile) Write(b []byte) (int, error) {
	n, _ := h.File.Write(b[:len(b)/2])
	return n, syscall.ENOSPC
}

// A write that does not come to its end leaves the former bundle whole, and the
// same task again makes up for it.
func TestUpdateTrustTornWrite(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	both := append(append([]byte{}, newAuthority(t, "next server ca").pem...), f.server.pem...)
	f.onTrust = func() (trust.NodeTrust, error) { return trustOf(both, f.nodes.pem), nil }
	c := f.config()
	a, log := newAgent(t, c, Deps{})
	var full atomic.Bool
	full.Store(true)
	a.state.disk.create = func(path string, mode os.FileMode) (outFile, error) {
		file, err := disk{}.open(path, mode)
		if err == nil && full.Load() && strings.HasPrefix(path, c.CABundlePath) {
			return halfFile{file}, nil
		}
		return file, err
	}
	launch(t, a, log)
	r := f.updateTrust(1)
	require.Equal(t, task.Failed, r.Status)
	require.True(t, strings.HasPrefix(r.Message, bundleUnwritten+": "), r.Message)
	require.Equal(t, string(f.server.pem), content(t, c.CABundlePath))
	require.NoFileExists(t, c.CABundlePath+".tmp")
	full.Store(false)
	require.Equal(t, task.Succeeded, f.updateTrust(2).Status)
	require.Equal(t, string(both), content(t, c.CABundlePath))
}

// A removed node gets no bundles, keeps none and ends.
func TestUpdateTrustOfARemovedNode(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	gone := identityError(schema.ReasonNodeRemoved)
	f.onTrust = func() (trust.NodeTrust, error) { return trust.NodeTrust{}, gone }
	f.onResult = func(int, string, task.Result) error { return gone }
	c := f.config()
	a := start(t, c, Deps{})
	p := f.payload(task.UpdateTrust, 1, nil)
	f.offers <- f.offerOf(p, 1)
	a.ends(t)
	require.NoError(t, a.err)
	require.Equal(t, 1, f.count("trust"))
	require.Equal(t, string(f.server.pem), content(t, c.CABundlePath))
}

// The bundle is judged at the server's time and for the server's name.
func TestProvenBy(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	c := f.config()
	f.install(c, f.id, time.Now().Add(time.Hour))
	a, _ := newAgent(t, c, Deps{})
	t.Cleanup(a.Close)
	require.True(t, a.Keep(t.Context()).Ready)
	api := a.api()
	_, chain, err := api.trust(t.Context())
	require.NoError(t, err)
	roots := parseCerts(f.server.pem)
	require.NoError(t, api.provenBy(roots, chain))
	require.Error(t, api.provenBy(nil, chain))
	require.Error(t, api.provenBy(roots, nil))
	api.base = "https://elsewhere/internal/v1/nodes/x"
	require.ErrorContains(t, api.provenBy(roots, chain), "elsewhere")
}
