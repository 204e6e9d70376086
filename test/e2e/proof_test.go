package e2e

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// requireSigned requires that the task's result is what its node signed with the
// certificate that the audit names.
func requireSigned(t *testing.T, v schema.TaskView) {
	t.Helper()
	proof := task(t, v.TaskID).ResultProof
	require.NotNil(t, proof, "%s has no proof", v.Type)
	public, err := x509.ParsePKIXPublicKey(proof.Key)
	require.NoError(t, err)
	key, isECDSA := public.(*ecdsa.PublicKey)
	require.True(t, isECDSA)
	sum := sha256.Sum256(dsse.PAE(schema.ResultPayloadType(v.TaskID), proof.Body))
	require.True(t, ecdsa.VerifyASN1(key, sum[:], proof.Signature))
	var said schema.TaskResult
	require.NoError(t, json.Unmarshal(proof.Body, &said))
	require.Equal(t, v.Status, said.Status)

	issued, finished := "", ""
	for _, e := range audit(t, v.NodeID) {
		if e.Target == v.TaskID && e.Action == schema.AuditTaskFinished {
			finished = e.Detail["serial"]
		}
		if e.Detail["serial"] == proof.Serial && e.Detail["spki"] != "" {
			issued = e.Detail["spki"]
		}
	}
	require.Equal(t, proof.Serial, finished)
	require.Equal(t, schema.SPKIHash(proof.Key), issued)
}
