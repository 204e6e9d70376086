package nodeapi_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestNoSecretOfANodeIsStored plants a token into each text that a node reports.
func TestNoSecretOfANodeIsStored(t *testing.T) {
	token, _, _ := trust.NewToken()
	vault, encoded := "hvs.CAESIJ0aBcDeFgHiJkLmNoPq", base64.StdEncoding.EncodeToString([]byte("key: "+token))
	var stored []any
	var results []nodeapi.ReceivedResult
	s := newSite(t, &fakeStore{
		result: func(r nodeapi.ReceivedResult) (task.Type, error) {
			stored, results = append(stored, r, string(r.Proof.Body)), append(results, r)
			return task.NodeProbe, nil
		},
		progress: func(p task.Progress) (wire.ProgressResponse, error) {
			stored = append(stored, p)
			return wire.ProgressResponse{}, nil
		},
		claim: func(c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
			stored = append(stored, c)
			return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 1}, nil
		},
		heartbeat: func(_ nodeapi.Caller, h wire.Heartbeat) error { stored = append(stored, h); return nil },
		nextFor:   func(p wire.PollRequest) (*nodeapi.Dispatch, error) { stored = append(stored, p); return nil, nil },
	})
	c := s.client(s.cert())
	post := func(r task.Result) nodeapi.ReceivedResult {
		r.LeaseEpoch, r.Status, r.StartedAt = 1, task.Succeeded, time.Now()
		text, err := json.Marshal(r)
		require.NoError(t, err)
		a := call(t, c, http.MethodPost, s.path("/tasks/"+schema.NewID()+"/result"), string(text))
		require.Equal(t, http.StatusNoContent, a.status, string(a.body))
		require.NotEmpty(t, results[len(results)-1].Proof.Signature)
		return results[len(results)-1]
	}
	output, err := json.Marshal(map[string]any{"n": 1, "list": []any{"a", encoded, true}, vault: "b"})
	require.NoError(t, err)
	for name, r := range map[string]task.Result{
		"message": {Message: "wrong: " + token}, "code": {Code: schema.Kind(vault)},
		"output tail": {OutputTail: "VAULT_TOKEN=" + vault + "\n"}, "output": {Output: output},
	} {
		require.Empty(t, post(r).Proof.Body, name)
	}
	require.JSONEq(t, `{"n": 1, "list": ["a", "[withheld: it contains what looks like an enrollment token]", true],
		"[withheld: it contains what looks like a Vault token]": "b"}`, string(post(task.Result{Output: output}).Output))
	clean := task.Result{Message: "ran", Output: json.RawMessage(`{"n":1}`), OutputTail: "done\n"}
	kept := post(clean)
	require.NotEmpty(t, kept.Proof.Body)
	require.Equal(t, clean.OutputTail+clean.Message, kept.OutputTail+kept.Message)

	a := call(t, c, http.MethodPost, s.path("/tasks/"+schema.NewID()+"/progress"), `{"lease_epoch":1,"message":"`+token+`"}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	enrolled := call(t, s.client(nil), http.MethodPost, s.path("/enroll"), wire.EnrollRequest{Token: token, CSR: csr(t, newKey(t), nil), AgentVersion: vault})
	require.Equal(t, http.StatusOK, enrolled.status, string(enrolled.body))
	h := wire.Heartbeat{AgentVersion: vault, BootID: encoded, Fault: vault, Phase: wire.PhaseReady, Workloads: []task.Workload{{Name: token, Kind: "docker", Warning: vault}}}
	poll := <-s.poll(t.Context(), func(p *wire.PollRequest) { p.AgentSession, p.Heartbeat, p.WaitSeconds = vault, &h, 0 })
	require.Equal(t, http.StatusNoContent, poll.status, string(poll.body))

	require.Len(t, stored, 2*len(results)+4)
	text, err := json.Marshal(stored)
	require.NoError(t, err)
	for _, secret := range []string{token, vault, encoded} {
		require.NotContains(t, string(text), secret)
		require.NotContains(t, s.log.String(), secret)
	}
}
