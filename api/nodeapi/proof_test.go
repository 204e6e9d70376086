package nodeapi_test

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/resulttest"
)

// A result is accepted only with the node's signature over its body and task, and
// the stored proof can be verified without the certificate.
func TestResultSignatureIsVerified(t *testing.T) {
	var stored []nodeapi.ReceivedResult
	s := newSite(t, &fakeStore{result: func(r nodeapi.ReceivedResult) (task.Type, error) {
		stored = append(stored, r)
		return task.NodeProbe, nil
	}})
	cert, nodeTask := s.cert(), schema.NewID()
	text, err := json.Marshal(task.Result{LeaseEpoch: 1, Status: task.Succeeded, Message: "ran", StartedAt: time.Now()})
	require.NoError(t, err)
	body := string(text)
	sign := func(taskID, body string) string {
		signature, err := resulttest.Sign(cert, taskID, []byte(body))
		require.NoError(t, err)
		return signature
	}
	other, err := resulttest.Sign(s.cert(), nodeTask, text)
	require.NoError(t, err)
	plain := s.clientWith(cert, true, nil)
	plain.Transport = plain.Transport.(resulttest.Transport).Transport
	post := func(body string, signatures ...string) answer {
		var headers []string
		for _, signature := range signatures {
			headers = append(headers, wire.HeaderResultSignature, signature)
		}
		return call(t, plain, http.MethodPost, s.path("/tasks/"+nodeTask+"/result"), body, headers...)
	}
	good := sign(nodeTask, body)
	for name, a := range map[string]answer{
		"absent":         post(body),
		"altered":        post(strings.Replace(body, "succeeded", "failed", 1), good),
		"spaced":         post(body+"\n", good),
		"another key":    post(body, other),
		"another task":   post(body, sign(schema.NewID(), body)),
		"twice":          post(body, good, good),
		"not base64url":  post(body, good+"="),
		"no signature":   post(body, ""),
		"much too long":  post(body, strings.Repeat("A", 4000)),
		"bare signature": post(body, sign("", body)),
	} {
		assert.Equal(t, http.StatusUnauthorized, a.status, name)
		assert.Equal(t, schema.ReasonResultSignature, a.refusal(t).Reason, name)
		assert.Equal(t, schema.KindInvalidNodeIdentity, a.refusal(t).Code, "%s: agents keep what is refused so", name)
	}
	require.Empty(t, stored)
	assert.InDelta(t, 10, s.metric("gpuaas_identity_refusals_total", schema.ReasonResultSignature), 0)

	a := post(body, good)
	require.Equal(t, http.StatusNoContent, a.status, string(a.body))
	require.Len(t, stored, 1)
	proof := stored[0].Proof
	assert.Equal(t, trust.CertFactsOf(cert.Leaf).Serial, proof.Serial)
	assert.Equal(t, body, string(proof.Body))
	assert.Equal(t, good, base64.RawURLEncoding.EncodeToString(proof.Signature))
	assert.Equal(t, trust.CertFactsOf(cert.Leaf).SPKI, schema.SHA256Hex(proof.Key))
	key, err := x509.ParsePKIXPublicKey(proof.Key)
	require.NoError(t, err)
	sum := sha256.Sum256(dsse.PAE(trust.ResultPayloadType(nodeTask), proof.Body))
	assert.True(t, ecdsa.VerifyASN1(key.(*ecdsa.PublicKey), sum[:], proof.Signature))
}
