package nodeapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// ServerCA returns the same CAs as NodeCA in reverse order.
func (f *fakeIssuer) ServerCA(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return "", schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
	}
	var text string
	for _, c := range slices.Backward(f.roots) {
		text += certPEM(c)
	}
	return text, nil
}

func (f *fakeIssuer) NodeCA(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var text string
	for _, c := range f.roots {
		text += certPEM(c)
	}
	return text, nil
}

// The response contains both CA bundles with their fingerprints, or is an error if one
// is unavailable.
func TestNodeTrust(t *testing.T) {
	s := newSite(t, &fakeStore{})
	second := newCA(t, "node CA 2")
	s.issuer.set(false, s.nodeCA.cert, second.cert)
	c := s.client(s.cert())
	a := call(t, c, http.MethodGet, s.path("/trust"), nil)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	var got trust.NodeTrust
	require.NoError(t, json.Unmarshal(a.body, &got))
	one, two := certPEM(s.nodeCA.cert), certPEM(second.cert)
	assert.Equal(t, trust.NodeTrust{CABundlePEM: two + one, CABundleFingerprint: trust.Fingerprint(two),
		NodeCertCABundlePEM: one + two, NodeCertCABundleFingerprint: trust.Fingerprint(one)}, got)

	s.issuer.set(true, s.nodeCA.cert)
	a = call(t, c, http.MethodGet, s.path("/trust"), nil)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, schema.KindServiceUnavailable, a.refusal(t).Code)
}
