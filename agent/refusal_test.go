package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// lastVia returns the last way the server issued an identity.
func (r *rig) lastVia() trust.IssueMethod { return r.book.Via[len(r.book.Via)-1] }

// TestRecoverAfterExpiry: the agent notices the expiry before it polls, and
// recovers without an operator.
func TestRecoverAfterExpiry(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"while running": false, "while off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			r.pass(trust.CertTTL + time.Hour)
			if restart {
				require.True(t, r.boot())
			}
			polls := r.f.Count("wait")
			out := r.step()
			require.Equal(t, identity.ActRecover, out.Action)
			require.NoError(t, out.Err)
			require.NoError(t, out.poll)
			require.Equal(t, polls+1, r.f.Count("wait"), "no poll with the expired certificate")
			require.Equal(t, trust.IssuedByRecover, r.lastVia())
			require.Equal(t, r.agent.identity.Current().Meta.RecoveryToken, r.envToken())
			require.True(t, r.logged("the certificate expired at"))
			require.True(t, r.logged("recovery started"))
		})
	}
}

// TestCodedAnswers: only expired and issuer_retired lead to recovery, and in the end
// unknown_issuer (TestCAMadeAgain).
func TestCodedAnswers(t *testing.T) {
	t.Parallel()
	for reason, recovers := range map[string]bool{
		schema.ReasonExpired:          true,
		schema.ReasonIssuerRetired:    true,
		schema.ReasonSerialSuperseded: false,
		schema.ReasonNodeLocked:       false,
		schema.ReasonIdentityMismatch: false,
		schema.ReasonNoCertificate:    false,
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			refused := 0
			r.book.Refuse = func(path string) error {
				if path != "wait" || r.lastVia() == trust.IssuedByRecover {
					return nil
				}
				refused++
				return agenttest.IdentityError(reason)
			}
			for range 12 {
				out := r.step()
				require.False(t, out.Removed)
				r.pass(min(max(out.Wait, time.Second), time.Hour))
			}
			if recovers {
				require.Equal(t, 1, refused)
				require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByRecover}, r.book.Via)
			} else {
				require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll}, r.book.Via, "this answer must not lead to a new identity")
			}
			require.FileExists(t, r.conf.KeyPath)
		})
	}
}

func TestUnknownIssuerOnOneReplica(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	n := 0
	r.book.Refuse = func(path string) error {
		if n++; path == "wait" && n%3 != 0 {
			return agenttest.IdentityError(schema.ReasonUnknownIssuer)
		}
		return nil
	}
	for range 12 {
		r.step()
		r.pass(time.Second)
	}
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll}, r.book.Via)
}

// TestCAMadeAgain: the node CA was made again under the same name, so that the handshake
// still names the issuer. The node recovers when the server has not recognized its
// certificate for some minutes, and loads the bundle of the new CA.
func TestCAMadeAgain(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	first := r.agent.identity.Current()
	again := agenttest.NewAuthority(t, r.f.Nodes.Cert.Subject.CommonName)
	r.book.Live = []agenttest.Authority{again}
	r.f.OnTrust = func() (trust.NodeTrust, error) { return agenttest.TrustOf(r.f.Server.PEM, again.PEM), nil }
	r.wire.accept = func() [][]byte { return [][]byte{again.Cert.RawSubject} }
	r.book.Refuse = func(path string) error {
		if path == "wait" && r.lastVia() != trust.IssuedByRecover {
			return agenttest.IdentityError(schema.ReasonUnknownIssuer)
		}
		return nil
	}
	r.step()
	r.pass(2 * time.Minute)
	require.Equal(t, schema.ReasonUnknownIssuer, schema.AsError(r.step().poll).Reason)
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll}, r.book.Via, "one replica may not know the issuer yet")
	r.pass(2 * time.Minute)
	r.step()
	require.NoError(t, r.step().poll)
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByRecover}, r.book.Via)
	require.Equal(t, first.Facts.Issuer, r.agent.identity.Current().Facts.Issuer)
	require.Equal(t, string(again.PEM), content(t, r.conf.NodeCABundlePath))
}

// TestReconnectAfterUnknownIssuer: an open connection is older than what
// the server accepts. Where the issuer is gone the next handshake says so.
func TestReconnectAfterUnknownIssuer(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	next := agenttest.NewAuthority(t, "next node ca")
	held := r.agent.api()
	r.book.Live, r.book.Blind = []agenttest.Authority{next}, true
	out := r.step()
	require.Equal(t, schema.ReasonUnknownIssuer, schema.AsError(out.poll).Reason)
	require.NotSame(t, held, r.agent.api(), "the next request would use the same connection")
	r.wire.accept = func() [][]byte { return [][]byte{next.Cert.RawSubject} }
	require.ErrorIs(t, r.step().poll, identity.ErrIssuer)
	out = r.step()
	require.Equal(t, identity.ActRecover, out.Action)
	require.NoError(t, out.poll)
}

// TestRotationsWhileOffline: three rotations of the node CA pass while the node is
// off. It comes back under the newest at once, and there is no more to do.
func TestRotationsWhileOffline(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	var last agenttest.Authority
	for _, name := range []string{"node ca 2", "node ca 3", "node ca 4"} {
		last = agenttest.NewAuthority(t, name)
		r.book.Live = []agenttest.Authority{last}
		r.pass(time.Hour)
	}
	require.True(t, r.boot())
	r.converge()
	for range 10 {
		require.NoError(t, r.step().poll)
		r.pass(time.Minute)
	}
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByRecover}, r.book.Via)
	require.Equal(t, last.Cert.Subject.String(), r.agent.identity.Current().Facts.Issuer)
}

// TestRenewUnderRetiredIssuer: a rotation was rolled back between a renewal
// and its first use. The previous certificate renews again; nothing recovers.
func TestRenewUnderRetiredIssuer(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	old, first := r.f.Nodes, r.serial()
	r.book.Live = []agenttest.Authority{old, agenttest.NewAuthority(t, "next node ca")}
	rolledBack := false
	r.book.Refuse = func(path string) error {
		if path == "probe" && !rolledBack {
			rolledBack = true
			r.book.Live = []agenttest.Authority{old}
		}
		return nil
	}
	r.due()
	out := r.step()
	require.Equal(t, schema.ReasonIssuerRetired, schema.AsError(out.Err).Reason)
	require.NoError(t, out.poll)
	require.Equal(t, first, r.serial())
	r.pass(time.Hour)
	r.converge()
	require.NotEqual(t, first, r.serial())
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByRenew, trust.IssuedByRenew}, r.book.Via)
}

// TestBackOffWhileLocked: few requests, an operator's next step, nothing
// destroyed; a reissued token ends it.
func TestBackOffWhileLocked(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.book.IsLocked = true
	r.wire.n.Store(0)
	var waits []time.Duration
	for end := r.local.Now().Add(12 * time.Hour); r.local.Now().Before(end); {
		out := r.step()
		if out.Wait > 0 {
			waits = append(waits, out.Wait)
		}
		r.pass(max(out.Wait, time.Second))
	}
	require.Less(t, r.wire.n.Load(), int64(110), "a locked node hammers")
	require.LessOrEqual(t, waits[len(waits)-1], 15*time.Minute)
	require.Greater(t, waits[len(waits)-1], 6*time.Minute)
	require.True(t, r.logged("node is locked"))
	require.True(t, r.logged("reissue-enrollment "+r.conf.NodeID))

	r.setToken(r.book.Token())
	r.boot()
	r.converge()
	require.Equal(t, int64(2), r.agent.identity.Current().ID.Incarnation)
}

// TestSupersededFallsBack: the version before is tried once, then waiting is
// all that is left.
func TestSupersededFallsBack(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	first := r.serial()
	r.due()
	r.converge()
	second := r.serial()
	r.book.Mu.Lock() // as of a server restored to before the renewal
	b := r.book
	b.Void[second], b.Retired = true, map[string]time.Time{}
	b.Current = &agenttest.Slot{Facts: r.agent.identity.Versions()[1].Facts, Seq: 1, Token: r.agent.identity.Versions()[1].Meta.RecoveryToken}
	r.book.Mu.Unlock()
	out := r.step()
	require.Equal(t, schema.ReasonSerialSuperseded, schema.AsError(out.poll).Reason)
	require.Equal(t, first, r.serial())
	out = r.step()
	require.NoError(t, out.poll)
	require.Equal(t, identity.ActRenew, out.Action, "the older one is due at once")

	r.book.Mu.Lock()
	b.Void[first], b.Void[r.serial()], b.Current = true, true, nil
	r.book.Mu.Unlock()
	polls := r.f.Count("wait")
	for range 10 {
		out := r.step()
		require.False(t, out.Removed)
		r.pass(time.Second)
	}
	require.LessOrEqual(t, r.f.Count("wait")-polls, 3)
	require.True(t, r.logged("identity is superseded"))
	require.Equal(t, trust.IssuedByRenew, r.lastVia(), "a superseded identity must not recover automatically")
}

// TestRecoverAfterCAChange: the issuer is not among what the server accepts; nothing is
// sent under the dead identity, and the node recovers.
func TestRecoverAfterCAChange(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	next := agenttest.NewAuthority(t, "next node ca")
	r.book.Live = []agenttest.Authority{next}
	r.wire.accept = func() [][]byte { return [][]byte{next.Cert.RawSubject} }
	r.wire.n.Store(0)
	out := r.step()
	require.ErrorIs(t, out.poll, identity.ErrIssuer)
	require.Zero(t, r.wire.n.Load())
	out = r.step()
	require.Equal(t, identity.ActRecover, out.Action)
	require.NoError(t, out.poll)
	require.Equal(t, next.Cert.Subject.String(), r.agent.identity.Current().Facts.Issuer)
	require.True(t, r.logged("certificate may be from a replaced node CA"), "the bundle on the node is the old one")
}

// TestRenewUnderUnknownIssuer: the ingress does not accept the new issuer
// yet. The previous certificate stays in use, even after a restart.
func TestRenewUnderUnknownIssuer(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	old, first := r.f.Nodes, r.serial()
	next := agenttest.NewAuthority(t, "next node ca")
	r.book.Live = []agenttest.Authority{old, next}
	accepted := [][]byte{old.Cert.RawSubject}
	r.wire.accept = func() [][]byte { return accepted }
	r.due()
	out := r.step()
	require.Equal(t, identity.ActRenew, out.Action)
	require.ErrorIs(t, out.Err, identity.ErrIssuer)
	require.NoError(t, out.poll)
	require.Equal(t, first, r.serial())
	require.True(t, r.boot())
	r.converge()
	require.Equal(t, first, r.serial())
	require.NotEqual(t, trust.IssuedByRecover, r.lastVia())
	accepted = append(accepted, next.Cert.RawSubject)
	r.pass(time.Hour)
	r.converge()
	require.True(t, r.book.Accepts(r.serial()))
}

// TestStaleReplica: after the node used a certificate of the new CA, a replica of the API that
// has not read this CA rejects the certificate, and cannot issue another one. The node does not
// use its previous certificate, which the server would take for a second machine. It continues
// at the next replica.
func TestStaleReplica(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	old, first := r.f.Nodes, r.serial()
	next := agenttest.NewAuthority(t, "next node ca")
	r.book.Live = []agenttest.Authority{old, next}
	both := [][]byte{old.Cert.RawSubject, next.Cert.RawSubject}
	accepted := both
	r.wire.accept = func() [][]byte { return accepted }
	r.due()
	r.converge()
	second := r.serial()
	require.NotEqual(t, first, second)

	accepted = both[:1]
	r.book.Refuse = func(path string) error {
		if path == "recover" {
			return schema.NewError(schema.KindServiceUnavailable, "this replica cannot reach Vault")
		}
		return nil
	}
	require.ErrorIs(t, r.step().poll, identity.ErrIssuer)
	for range 5 {
		r.step()
		require.Equal(t, second, r.serial())
		require.False(t, r.book.IsLocked)
		r.pass(time.Minute)
	}
	accepted = both
	r.pass(time.Hour)
	require.NoError(t, r.step().poll)
	require.Equal(t, second, r.serial())
}

// TestAlerts holds the texts of TLS alerts against real handshakes.
func TestAlerts(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(f *agenttest.API, c *tls.Config){
		"expired": func(_ *agenttest.API, c *tls.Config) {
			c.Time = func() time.Time { return time.Now().Add(1000 * time.Hour) }
		},
		"unknown ca": func(f *agenttest.API, c *tls.Config) {
			// A twin: the name is accepted, the key is another.
			c.ClientCAs = x509.NewCertPool()
			c.ClientCAs.AddCert(agenttest.NewAuthority(t, f.Nodes.Cert.Subject.CommonName).Cert)
		},
		"certificate required": func(_ *agenttest.API, c *tls.Config) {
			c.ClientCAs = nil
			c.ClientAuth = tls.RequireAnyClientCert
		},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			if name == "certificate required" && version == tls.VersionTLS12 {
				continue // TLS 1.2 says bad certificate
			}
			t.Run(name+" "+tls.VersionName(version), func(t *testing.T) {
				t.Parallel()
				f := agenttest.New(t)
				conf := f.Srv.TLS.Clone()
				conf.ClientAuth = tls.RequireAndVerifyClientCert
				conf.MaxVersion = version
				conf.Certificates = f.Srv.TLS.Certificates
				set(f, conf)
				f.Srv.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return conf, nil }
				c := configFor(f)
				install(f, c, f.ID, time.Now().Add(time.Hour))
				a, _ := newAgent(t, c, Deps{})
				t.Cleanup(a.Close)
				require.True(t, a.ReconcileIdentity(t.Context()).Ready)
				api := a.api()
				if name == "certificate required" {
					var err error
					api, err = a.newClient(nil, nil)
					require.NoError(t, err)
				}
				for range 50 { // the alert may lose against a broken pipe
					_, err := api.Poll(t.Context(), 0, wire.PollRequest{})
					require.Error(t, err)
					if a.identity.Observe(err) {
						return
					}
				}
				t.Fatal("the alert was never recognized")
			})
		}
	}
}

// TestWipeAfterRemoval: keys, certificates and tokens are gone, the agent ends
// without a fault and stays away over a restart, until there is a new token.
func TestWipeAfterRemoval(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]bool{"whole": false, "crashes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for k, more := 1, true; more; k++ {
				r := enrolled(t)
				r.due()
				r.converge()
				secrets := r.secrets()
				require.Greater(t, len(secrets), 4)
				r.book.IsRemoved = true
				proof := r.removal(func(*trust.Removal) {})
				r.f.Removal = func() json.RawMessage { return proof }
				if faults {
					r.disk.n, r.disk.at, r.disk.crash = 0, k, true
				}
				out := r.step()
				if more = faults && !out.up; more {
					require.True(t, r.boot())
					out = r.step()
				}
				r.disk.at = 0
				require.True(t, out.Removed)
				require.NoError(t, out.Err)
				for path, text := range r.files() {
					for _, s := range secrets {
						require.NotContains(t, text, s, path)
					}
				}
				require.Empty(t, r.envToken())
				require.NoFileExists(t, r.conf.KeyPath)
				require.NoFileExists(t, r.conf.CertPath)
				require.True(t, r.boot())
				r.wire.n.Store(0)
				require.NoError(t, r.agent.Run(t.Context()))
				require.Zero(t, r.wire.n.Load(), "a removed node speaks")

				r.f.Removal = nil
				r.book.IsRemoved, r.book.Tokens = false, map[string]*agenttest.EnrollToken{}
				r.setToken(r.book.Token())
				require.True(t, r.boot())
				r.converge()
			}
		})
	}
}

// secrets are the private parts on the node's disk.
func (r *rig) secrets() []string {
	var out []string
	for _, v := range r.agent.identity.Versions() {
		out = append(out, v.Meta.RecoveryToken)
	}
	for path, text := range r.files() {
		text = strings.ReplaceAll(text, `\n`, "\n") // in JSON
		if _, key, there := strings.Cut(text, "BEGIN PRIVATE KEY-----\n"); there && filepath.Base(path) != "next-key.json" {
			first, _, _ := strings.Cut(key, "\n")
			out = append(out, first)
		}
	}
	return out
}

func (r *rig) files() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	err := filepath.Walk(filepath.Dir(r.conf.StateDir), func(path string, fi os.FileInfo, err error) error {
		if err != nil || fi.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		out[path] = string(text)
		return err
	})
	require.NoError(r.t, err)
	return out
}
