package agent

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Reasons for rejecting a CA bundle. The message of the task's result starts with the
// reason too, because a result has no field for it.
const (
	bundleMalformed = "ca_bundle_malformed"
	bundleLocksOut  = "ca_bundle_locks_out"
	bundleUnwritten = "ca_bundle_not_written"
	bundleOutdated  = "ca_bundle_outdated"
)

// checkTrustParams rejects params that are not those of agent.update_trust.
func checkTrustParams(params json.RawMessage) error {
	_, err := trustParams(params)
	return err
}

func trustParams(params json.RawMessage) (p trust.TrustParams, err error) {
	if runner.NoParams(params) == nil {
		return p, nil
	}
	err = schema.DecodeStrict(params, wire.MaxBodyBytes, &p)
	return p, err
}

// updateTrust runs agent.update_trust: it loads the CA bundles and all newer verifier
// sets. If one of the two fails, the other is still loaded. A certificate of another CA than
// the task names is renewed by the next pass of the identity manager.
func (a *Agent) updateTrust(ctx context.Context, t runner.Task) (any, error) {
	p, err := trustParams(t.Params)
	if err != nil {
		return nil, err
	}
	a.identity.RenewUnlessFrom(p.IssuerKey)
	// The file on the disk counts even after a failure: an operator may have
	// replaced the bundle.
	defer a.reread.Store(true)
	cas, bundleErr := updateBundles(ctx, a, p.NodeCABundle)
	set, err := a.sets.Newest(ctx, a.api().VerifierSets)
	if err := errors.Join(bundleErr, err); err != nil {
		return nil, err
	}
	return trust.TrustResult{SetVersion: set.Doc.Version, SetHash: set.Hash,
		CABundleFingerprint: cas.CABundleFingerprint, NodeCertCABundleFingerprint: cas.NodeCertCABundleFingerprint}, nil
}

// updateBundles replaces the node's CA bundles by the server's. The bundle that verifies the
// server must verify the connection that delivered it: otherwise the next poll would
// reach no server, so the previous bundle stays. So does that of the node CA if the server
// sends other ones than the wanted ones, "" for any.
func updateBundles(ctx context.Context, a *Agent, want string) (trust.NodeTrust, error) {
	api := a.api()
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
	if got := trust.BundleDigest(nodes...); want != "" && got != want {
		return t, notTaken(bundleOutdated, "the server sent the node CAs %s, and the task names %s", got, want)
	}
	if err := api.VerifyChain(servers, chain); err != nil {
		return t, notTaken(bundleLocksOut, "the server's own certificate does not verify under the bundle that it sent: %v", err)
	}
	for _, f := range []struct {
		path  string
		certs []*x509.Certificate
	}{{a.conf.NodeCABundlePath, nodes}, {api.BundlePath(), servers}} {
		if err := a.state.Replace(f.path, []byte(trust.EncodeCertificates(f.certs...))); err != nil {
			return t, notTaken(bundleUnwritten, "%s: %v", f.path, err)
		}
	}
	a.log.Info("CA bundles up to date", "fingerprint", t.CABundleFingerprint, "node_ca_fingerprint", t.NodeCertCABundleFingerprint)
	return t, nil
}

// readBundle parses a bundle and compares it with its fingerprint.
func readBundle(which, text, fingerprint string) ([]*x509.Certificate, error) {
	certs, err := trust.ParseCertificates(text)
	if err != nil {
		return nil, notTaken(bundleMalformed, "the bundle %s: %v", which, err)
	}
	if len(certs) == 0 || trust.Fingerprint(text) != fingerprint {
		return nil, notTaken(bundleMalformed, "the bundle %s is not the one that its fingerprint names", which)
	}
	return certs, nil
}

func notTaken(reason, format string, args ...any) error {
	return schema.NewError(schema.KindTaskFailed, reason+": "+format, args...).WithReason(reason)
}
