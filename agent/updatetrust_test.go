package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// rotating is a server whose certificate can be replaced while it runs.
func rotating(t *testing.T) (f *agenttest.API, show func(agenttest.Authority)) {
	t.Helper()
	f = agenttest.New(t)
	var conf atomic.Pointer[tls.Config]
	show = func(ca agenttest.Authority) {
		c := f.Srv.TLS.Clone()
		c.GetConfigForClient, c.Certificates = nil, []tls.Certificate{ca.Server(t)}
		conf.Store(c)
	}
	show(f.Server)
	f.Srv.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return conf.Load(), nil }
	return f, show
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// The server's bundles are taken, and used from the next poll: the node follows
// a server whose CA was replaced, step by step.
func TestUpdateTrust(t *testing.T) {
	t.Parallel()
	f, show := rotating(t)
	next, nodes := agenttest.NewAuthority(t, "next server ca"), agenttest.NewAuthority(t, "next node ca")
	both := append(append([]byte{}, f.Server.PEM...), next.PEM...)
	answer := agenttest.TrustOf(both, append(append([]byte{}, nodes.PEM...), f.Nodes.PEM...))
	f.OnTrust = func() (out trust.NodeTrust, err error) {
		f.Note(func() { out = answer })
		return out, nil
	}
	c := configFor(f)
	start(t, c, Deps{})
	r := f.UpdateTrust(1)
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	got := decode[trust.TrustResult](t, r.Output)
	require.Equal(t, answer.CABundleFingerprint, got.CABundleFingerprint)
	require.Equal(t, answer.NodeCertCABundleFingerprint, got.NodeCertCABundleFingerprint)
	require.Equal(t, string(both), content(t, c.CABundlePath))
	require.Equal(t, answer.NodeCertCABundlePEM, content(t, c.NodeCABundlePath))

	show(next)
	f.Cut()
	f.Note(func() { answer = agenttest.TrustOf(next.PEM, nodes.PEM) })
	r = f.UpdateTrust(2)
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	require.Equal(t, string(next.PEM), content(t, c.CABundlePath), "the old one is no longer needed")
	f.Cut()
	require.Equal(t, task.Succeeded, f.UpdateTrust(3).Status)
}

// A bundle that would lock the node out, or that is none, is refused and changes
// nothing on the node.
func TestUpdateTrustRejectsBundles(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	next := agenttest.NewAuthority(t, "next server ca")
	good := agenttest.TrustOf(f.Server.PEM, f.Nodes.PEM)
	changed := func(change func(*trust.NodeTrust)) trust.NodeTrust {
		t := good
		change(&t)
		return t
	}
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
	var answer atomic.Pointer[trust.NodeTrust]
	f.OnTrust = func() (trust.NodeTrust, error) { return *answer.Load(), nil }
	agenttest.NewChain(t, f)
	c := configFor(f)
	start(t, c, Deps{})
	seq := int64(0)
	for name, tc := range map[string]struct {
		trust  trust.NodeTrust
		reason string
	}{
		"a CA that the server is not of": {agenttest.TrustOf(next.PEM, f.Nodes.PEM), bundleLocksOut},
		"the node CA for the server's":   {agenttest.TrustOf(f.Nodes.PEM, f.Nodes.PEM), bundleLocksOut},
		"another fingerprint":            {changed(func(t *trust.NodeTrust) { t.CABundleFingerprint = strings.Repeat("0", 64) }), bundleMalformed},
		"nothing":                        {agenttest.TrustOf(nil, f.Nodes.PEM), bundleMalformed},
		"no node CA":                     {agenttest.TrustOf(f.Server.PEM, nil), bundleMalformed},
		"text behind":                    {changed(func(t *trust.NodeTrust) { t.CABundlePEM += "x" }), bundleMalformed},
		"a key in it":                    {changed(func(t *trust.NodeTrust) { t.NodeCertCABundlePEM += key }), bundleMalformed},
	} {
		answer.Store(&tc.trust)
		seq++
		r := f.UpdateTrust(seq)
		require.Equal(t, task.Failed, r.Status, name)
		require.Equal(t, schema.KindTaskFailed, r.Code, name)
		require.True(t, strings.HasPrefix(r.Message, tc.reason+": "), "%s: %s", name, r.Message)
		require.Equal(t, string(f.Server.PEM), content(t, c.CABundlePath), name)
		require.Equal(t, string(f.Nodes.PEM), content(t, c.NodeCABundlePath), name)
	}
	require.GreaterOrEqual(t, f.Count("verifier-sets"), int(seq), "the verifier sets are still requested")
	answer.Store(&good)
	require.Equal(t, task.Succeeded, f.UpdateTrust(seq+1).Status)
}

// A task of a rotation of the node CA names the CAs that the node must load and the one that
// issues: another bundle is rejected, and a certificate of another CA is renewed at once. The
// polls name the bundle that the node has.
func TestUpdateTrustOfRotation(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	next := agenttest.NewAuthority(t, "next node ca")
	both := append(append([]byte{}, f.Nodes.PEM...), next.PEM...)
	old, staged := trust.BundleDigest(f.Nodes.Cert), trust.BundleDigest(next.Cert, f.Nodes.Cert)
	var answer atomic.Pointer[trust.NodeTrust]
	serve := func(pem []byte) { answer.Store(new(agenttest.TrustOf(f.Server.PEM, pem))) }
	f.OnTrust = func() (trust.NodeTrust, error) { return *answer.Load(), nil }
	c := configFor(f)
	start(t, c, Deps{})
	ask := func(seq int64, p trust.TrustParams) task.Result {
		sent := f.Payload(task.UpdateTrust, seq, p)
		f.Offers <- f.OfferOf(sent, 1)
		return f.Result(sent.TaskID)
	}
	serve(f.Nodes.PEM)
	r := ask(1, trust.TrustParams{NodeCABundle: staged})
	require.Equal(t, task.Failed, r.Status, "a replica of the API may not have the new CA yet")
	require.True(t, strings.HasPrefix(r.Message, bundleOutdated+": "), r.Message)
	f.Until("a poll with the old bundle", func() bool { return f.NodeCABundle == old })
	serve(both)
	r = ask(2, trust.TrustParams{NodeCABundle: staged})
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	require.Equal(t, string(both), content(t, c.NodeCABundlePath))
	f.Until("a poll with the new bundle", func() bool { return f.NodeCABundle == staged })
	require.Zero(t, f.Count("renew"))
	r = ask(3, trust.TrustParams{NodeCABundle: staged, IssuerKey: hex.EncodeToString(f.Nodes.Cert.SubjectKeyId)})
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	r = ask(4, trust.TrustParams{NodeCABundle: staged, IssuerKey: hex.EncodeToString(next.Cert.SubjectKeyId)})
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	f.Until("a renewal", func() bool { return f.Counts["renew"] == 1 })

	sent := f.Payload(task.UpdateTrust, 5, map[string]string{"unknown": "x"})
	f.Offers <- f.OfferOf(sent, 1)
	require.Equal(t, schema.KindTaskRefused, f.Result(sent.TaskID).Code)
}

// halfFile takes half of what is written.
type halfFile struct{ disk.File }

func (h halfFile) Write(b []byte) (int, error) {
	n, _ := h.File.Write(b[:len(b)/2])
	return n, syscall.ENOSPC
}

// A write that does not come to its end leaves the previous bundle whole, and the
// same task again makes up for it.
func TestUpdateTrustTornWrite(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	both := append(append([]byte{}, agenttest.NewAuthority(t, "next server ca").PEM...), f.Server.PEM...)
	f.OnTrust = func() (trust.NodeTrust, error) { return agenttest.TrustOf(both, f.Nodes.PEM), nil }
	c := configFor(f)
	var full atomic.Bool
	full.Store(true)
	a, log := newAgent(t, c, Deps{FS: hookDisk{create: func(path string) (disk.File, error) {
		file, err := disk.OS{}.Create(path)
		if err == nil && full.Load() && strings.HasPrefix(path, c.CABundlePath) {
			return halfFile{file}, nil
		}
		return file, err
	}}})
	launch(t, a, log)
	r := f.UpdateTrust(1)
	require.Equal(t, task.Failed, r.Status)
	require.True(t, strings.HasPrefix(r.Message, bundleUnwritten+": "), r.Message)
	require.Equal(t, string(f.Server.PEM), content(t, c.CABundlePath))
	require.NoFileExists(t, c.CABundlePath+".tmp")
	full.Store(false)
	require.Equal(t, task.Succeeded, f.UpdateTrust(2).Status)
	require.Equal(t, string(both), content(t, c.CABundlePath))
}

// A removed node gets no bundles, keeps none and ends with the signed removal.
func TestUpdateTrustRemovedNode(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	gone := agenttest.IdentityError(schema.ReasonNodeRemoved)
	f.OnTrust = func() (trust.NodeTrust, error) { return trust.NodeTrust{}, gone }
	var removed atomic.Bool
	f.OnResult = func(int, string, task.Result) error { removed.Store(true); return gone }
	f.OnWait = func(int) error { return when(&removed, gone) }
	f.Removal = func() json.RawMessage {
		return f.SignedRemoval(f.Signer, trust.RemovalPayloadType, f.ID, time.Now(), func(*trust.Removal) {})
	}
	c := configFor(f)
	a := start(t, c, Deps{})
	p := f.Payload(task.UpdateTrust, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	a.ends(t)
	require.NoError(t, a.err)
	require.Equal(t, 1, f.Count("trust"))
	require.Equal(t, string(f.Server.PEM), content(t, c.CABundlePath))
}

// TestProvenBy: the bundle is checked at the server's time and for the server's name.
func TestProvenBy(t *testing.T) {
	t.Parallel()
	f, _ := rotating(t)
	c := configFor(f)
	install(f, c, f.ID, time.Now().Add(time.Hour))
	a, _ := newAgent(t, c, Deps{})
	t.Cleanup(a.Close)
	require.True(t, a.ReconcileIdentity(t.Context()).Ready)
	api := a.api()
	_, chain, err := api.Trust(t.Context())
	require.NoError(t, err)
	roots := []*x509.Certificate{f.Server.Cert}
	require.NoError(t, api.VerifyChain(roots, chain))
	require.Error(t, api.VerifyChain(nil, chain))
	require.Error(t, api.VerifyChain(roots, nil))
	a.conf.APIURL = "https://elsewhere"
	api, err = a.newClient(nil, nil)
	require.NoError(t, err)
	require.ErrorContains(t, api.VerifyChain(roots, chain), "elsewhere")
}
