package agent

import (
	"context"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// repairBundle loads the bundle of the node CA again if it does not fit the identity in
// use: an operator moved it aside, or the node recovered after its CA was replaced. The
// next poll repeats a failure.
func repairBundle(ctx context.Context, a *Agent, v *identity.Version) {
	fault := v.BundleFault(a.conf.NodeCABundlePath)
	if fault == nil {
		return
	}
	t, _, err := a.api().Trust(ctx)
	if err == nil {
		err = replaceNodeBundle(a, t)
	}
	if err != nil {
		a.log.Warn("cannot load the node CA bundle again", "cause", fault.Error(), "err", err.Error())
		return
	}
	a.log.Info("node CA bundle loaded again", "cause", fault.Error(), "fingerprint", t.NodeCertCABundleFingerprint)
}

// nodeBundleDigest identifies the node's bundle of the node CA, "" if it is missing or
// malformed.
func nodeBundleDigest(a *Agent) string {
	data, err := a.state.ReadFile(a.conf.NodeCABundlePath)
	if err != nil {
		return ""
	}
	certs, err := trust.ParseCertificates(string(data))
	if err != nil {
		return ""
	}
	return trust.BundleDigest(certs...)
}

// replaceNodeBundle replaces the node's bundle of the node CA by the server's.
func replaceNodeBundle(a *Agent, t trust.NodeTrust) error {
	certs, err := readBundle("of node certificates", t.NodeCertCABundlePEM, t.NodeCertCABundleFingerprint)
	if err != nil {
		return err
	}
	path := a.conf.NodeCABundlePath
	if err := a.state.Replace(path, []byte(trust.EncodeCertificates(certs...))); err != nil {
		return notTaken(bundleUnwritten, "%s: %v", path, err)
	}
	return nil
}
