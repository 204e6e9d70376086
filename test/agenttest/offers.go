package agenttest

import (
	"crypto/ed25519"
	"encoding/json"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func (f *API) Verifiers() trust.VerifierKeys {
	return trust.VerifierKeys{
		{State: trust.KeyActive, KeyID: "k1", Public: PublicOf(f.Signer)},
		{State: trust.KeyStaged, KeyID: "k2", Public: PublicOf(f.Staged)},
	}
}

// Payload is a valid task of the type.
func (f *API) Payload(typ task.Type, seq int64, params any) task.Payload {
	row, _ := typ.Info()
	p := task.Payload{
		V: 1, Env: f.ID.Env, TaskID: schema.NewID(), NodeID: f.ID.NodeID, Incarnation: f.ID.Incarnation,
		Type: typ, Effect: row.Effect, Seq: seq, IssuedAt: time.Now().UTC(), NotBefore: time.Now().UTC(),
		ExpiresAt: time.Now().UTC().Add(time.Hour), MaxRuntime: 60, TypeVersion: 1, OperationID: schema.NewID(),
		Expect:     task.Expectation{OpSeq: 1},
		WorkflowID: lifecycle.NodeWorkflowID("gpu-17", f.ID.NodeID), CorrelationID: schema.NewID(),
	}
	if params != nil {
		data, err := json.Marshal(params)
		require.NoError(f.T, err)
		p.Params = data
	}
	return p
}

// SignedRemoval is a signed removal of an identity, which change may change.
func (f *API) SignedRemoval(key ed25519.PrivateKey, payloadType string, id trust.Identity, now time.Time, change func(*trust.Removal)) json.RawMessage {
	f.T.Helper()
	r := trust.NewRemoval(id, schema.NewID(), now)
	change(&r)
	body, err := json.Marshal(r)
	require.NoError(f.T, err)
	return SignBytes(f.T, key, payloadType, body)
}

// Body is the signed body of a task; the params get their digest where it has
// none.
func (f *API) Body(p task.Payload) []byte {
	f.T.Helper()
	if p.ParamsSHA256 == "" {
		params, err := json.Marshal(p.Params) // as they will stand in the body
		require.NoError(f.T, err)
		p.ParamsSHA256 = schema.SHA256Hex(params)
	}
	body, err := json.Marshal(p)
	require.NoError(f.T, err)
	return body
}

func (f *API) Envelope(p task.Payload) json.RawMessage {
	f.T.Helper()
	return SignBytes(f.T, f.Signer, task.PayloadType, f.Body(p))
}

func (f *API) OfferOf(p task.Payload, epoch int64) wire.TaskOffer {
	return wire.TaskOffer{
		TaskID: p.TaskID, Envelope: f.Envelope(p), ServerTime: time.Now().UTC(),
		Lease: task.Lease{Epoch: epoch, ExpiresAt: time.Now().Add(time.Minute)},
	}
}

func (f *API) UpdateTrust(seq int64) task.Result {
	f.T.Helper()
	p := f.Payload(task.UpdateTrust, seq, nil)
	f.Offers <- f.OfferOf(p, 1)
	return f.Result(p.TaskID)
}
