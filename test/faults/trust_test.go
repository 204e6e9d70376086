package faults_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// taskKey is the task key of the simulated lifecycles. It signs only removals.
func taskKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

// signRemovals signs the removals that are due, like the worker.
func (w *world) signRemovals(ctx context.Context) error {
	now := w.db.clock.Now()
	due, err := w.store.Identities.DueRemovals(ctx, now, 10)
	if err != nil {
		return err
	}
	signer, err := dsse.NewEnvelopeSigner(agenttest.EdSigner{Key: taskKey(), ID: "k1"})
	if err != nil {
		return err
	}
	for _, d := range due {
		r := trust.NewRemoval(trust.Identity{Env: testEnv, NodeID: d.NodeID, Incarnation: d.Incarnation}, d.OperationID, now)
		body, err := json.Marshal(r)
		if err != nil {
			return err
		}
		envelope, err := signer.SignPayload(ctx, trust.RemovalPayloadType, body)
		if err != nil {
			return err
		}
		document, err := json.Marshal(envelope)
		if err != nil {
			return err
		}
		if err := w.store.Identities.PutRemoval(ctx, r, document); err != nil {
			return err
		}
	}
	return nil
}

// startTrust is the initial trust of every node.
func startTrust() trust.TaskTrust {
	return trust.TaskTrust{
		Keys:  trust.VerifierKeys{{State: trust.KeyActive, KeyID: "k1", Public: agenttest.PublicOf(taskKey())}},
		Floor: trust.VerifierSetRef{Version: 1, Hash: strings.Repeat("0", 64)},
	}
}

// noWork replaces the signer of lease grants and the source of verifier sets in
// tests without tasks.
type noWork struct{}

func (noWork) Ready() (<-chan struct{}, error) { return nil, nil }

func (noWork) Sign(task.Grant) (grant, key json.RawMessage, err error) {
	return nil, nil, schema.NewError(schema.KindInternal, "unexpected grant")
}

func (noWork) NewestSet(context.Context) (trust.StoredSet, error) {
	floor := startTrust().Floor
	return trust.StoredSet{Version: floor.Version, Hash: floor.Hash}, nil
}

func (noWork) AcceptedKeys() []string { return nil }

func (noWork) Replaced() <-chan struct{} { return nil }

func (noWork) SetsAfter(context.Context, int64, int) ([]trust.StoredSet, error) { return nil, nil }
