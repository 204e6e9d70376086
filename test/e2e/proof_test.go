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
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// requireSigned verifies that the node signed the task's result with the certificate
// in the audit.
func requireSigned(t *testing.T, v wire.TaskView) {
	t.Helper()
	proof := nodeTask(t, v.TaskID).ResultProof
	require.NotNil(t, proof, "%s has no proof", v.Type)
	public, err := x509.ParsePKIXPublicKey(proof.Key)
	require.NoError(t, err)
	key, isECDSA := public.(*ecdsa.PublicKey)
	require.True(t, isECDSA)
	sum := sha256.Sum256(dsse.PAE(trust.ResultPayloadType(v.TaskID), proof.Body))
	require.True(t, ecdsa.VerifyASN1(key, sum[:], proof.Signature))
	var result task.Result
	require.NoError(t, json.Unmarshal(proof.Body, &result))
	require.Equal(t, v.Status, result.Status)

	issued, finished := "", ""
	for _, e := range auditEvents(t, v.NodeID) {
		if e.Target == v.TaskID && e.Action == audit.TaskFinished {
			finished = e.Detail["serial"]
		}
		if e.Detail["serial"] == proof.Serial && e.Detail["spki"] != "" {
			issued = e.Detail["spki"]
		}
	}
	require.Equal(t, proof.Serial, finished)
	require.Equal(t, schema.SHA256Hex(proof.Key), issued)
}
