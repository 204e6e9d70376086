package agent

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"path/filepath"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Reasons for rejecting a CA bundle. The message of the task's result starts with the
// reason too, because a result has no field for it.
const (
	bundleMalformed = "ca_bundle_malformed"
	bundleLocksOut  = "ca_bundle_locks_out"
	bundleUnwritten = "ca_bundle_not_written"
)

// updateTrust runs agent.update_trust: it loads the CA bundles and all newer verifier
// sets. If one of the two fails, the other is still loaded.
func (a *Agent) updateTrust(ctx context.Context, _ runner.Task) (any, error) {
	// The file on the disk counts even after a failure: an operator may have
	// replaced the bundle.
	defer a.reread.Store(true)
	cas, bundleErr := trustUpdate{a}.bundles(ctx)
	set, err := a.sets.Newest(ctx, a.api().VerifierSets)
	if err := errors.Join(bundleErr, err); err != nil {
		return nil, err
	}
	return trust.TrustResult{SetVersion: set.Doc.Version, SetHash: set.Hash,
		CABundleFingerprint: cas.CABundleFingerprint, NodeCertCABundleFingerprint: cas.NodeCertCABundleFingerprint}, nil
}

// trustUpdate replaces the CA bundles of an agent.
type trustUpdate struct{ agent *Agent }

// bundles replaces the node's CA bundles by the server's. The bundle that verifies the
// server must verify the connection that delivered it: otherwise the next poll would
// reach no server, so the previous bundle stays.
func (u trustUpdate) bundles(ctx context.Context) (trust.NodeTrust, error) {
	api := u.agent.api()
	t, chain, err := api.Trust(ctx)
	if err != nil {
		return t, err
	}
	servers, err := readBundle("of the server", t.CABundlePEM, t.CABundleFingerprint)
	if err != nil {
		return t, err
	}
	nodes, err := readBundle("of node certificates", t.NodeCertCABundlePEM, t.NodeCertCABundleFingerprint)
	if err != nil {
		return t, err
	}
	if err := api.VerifyChain(servers, chain); err != nil {
		return t, notTaken(bundleLocksOut, "the server's own certificate does not verify under the bundle that it sent: %v", err)
	}
	for _, f := range []struct {
		path  string
		certs []*x509.Certificate
	}{{u.agent.conf.NodeCABundlePath, nodes}, {api.BundlePath(), servers}} {
		if err := u.replace(f.path, f.certs); err != nil {
			return t, notTaken(bundleUnwritten, "%s: %v", f.path, err)
		}
	}
	return t, nil
}

// replace writes a bundle unless it is already there: whole or not at all.
func (u trustUpdate) replace(path string, certs []*x509.Certificate) error {
	var data []byte
	for _, c := range certs {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	d := u.agent.state
	if old, err := d.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := d.MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	if err := d.Write(path, data); err != nil {
		return err
	}
	u.agent.log.Info("CA bundle replaced", "path", path, "certificates", len(certs), "fingerprint", trust.Fingerprint(string(data)))
	return nil
}

// readBundle parses a bundle. It rejects a bundle with one unreadable certificate,
// which may be the needed one.
func readBundle(which, text, fingerprint string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := []byte(text); len(bytes.TrimSpace(rest)) > 0; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil || b.Type != "CERTIFICATE" {
			return nil, notTaken(bundleMalformed, "the bundle %s holds a block that is no certificate", which)
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, notTaken(bundleMalformed, "cannot parse a certificate of the bundle %s: %v", which, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 || trust.Fingerprint(text) != fingerprint {
		return nil, notTaken(bundleMalformed, "the bundle %s is not the one that its fingerprint names", which)
	}
	return certs, nil
}

func notTaken(reason, format string, args ...any) error {
	e := schema.NewError(schema.KindTaskFailed, reason+": "+format, args...)
	return e.WithReason(reason)
}
