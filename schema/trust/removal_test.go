package trust_test

import (
	"crypto/ed25519"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func TestCheckRemoval(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	id := trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 2}
	signer, foreign := agenttest.NewKey(t), agenttest.NewKey(t)
	keys := []trust.VerifierKey{{State: trust.KeyActive, KeyID: "k1", Public: agenttest.PublicOf(signer)}}
	signed := func(key ed25519.PrivateKey, payloadType string, change func(*trust.Removal)) []byte {
		r := trust.NewRemoval(id, schema.NewID(), now)
		change(&r)
		body, err := json.Marshal(r)
		require.NoError(t, err)
		return agenttest.SignBytes(t, key, payloadType, body)
	}
	same := func(*trust.Removal) {}
	good := signed(signer, trust.RemovalPayloadType, same)
	for _, at := range []time.Duration{-trust.ClockSkew, 0, trust.RemovalLifetime - time.Second} {
		r, err := trust.CheckRemoval(good, keys, id, now.Add(at))
		require.NoError(t, err)
		require.Equal(t, id.Incarnation, r.Incarnation)
	}
	for reason, bad := range map[string]struct {
		document []byte
		after    time.Duration
	}{
		trust.ReasonEnvelope:      {document: nil},
		trust.ReasonSignature:     {document: signed(foreign, trust.RemovalPayloadType, same)},
		trust.ReasonPayloadType:   {document: signed(signer, task.PayloadType, same)},
		trust.ReasonVersion:       {document: signed(signer, trust.RemovalPayloadType, func(r *trust.Removal) { r.V = 2 })},
		trust.ReasonEnvironment:   {document: signed(signer, trust.RemovalPayloadType, func(r *trust.Removal) { r.Env = "prod" })},
		trust.ReasonOtherNode:     {document: signed(signer, trust.RemovalPayloadType, func(r *trust.Removal) { r.NodeID = schema.NewID() })},
		trust.ReasonOtherIdentity: {document: signed(signer, trust.RemovalPayloadType, func(r *trust.Removal) { r.Incarnation-- })},
		trust.ReasonBody:          {document: signed(signer, trust.RemovalPayloadType, func(r *trust.Removal) { r.OperationID = "" })},
		trust.ReasonNotYetValid:   {document: good, after: -trust.ClockSkew - time.Second},
		trust.ReasonPastExpiry:    {document: good, after: trust.RemovalLifetime},
	} {
		_, err := trust.CheckRemoval(bad.document, keys, id, now.Add(bad.after))
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: reason}, reason)
	}
	endless := signed(signer, trust.RemovalPayloadType, func(r *trust.Removal) { r.ExpiresAt = now.AddDate(10, 0, 0) })
	_, err := trust.CheckRemoval(endless, keys, id, now)
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: trust.ReasonPastExpiry})
}
