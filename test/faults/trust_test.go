package faults_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// startTrust is the initial trust of every node. The simulated lifecycles sign
// nothing with it.
func startTrust() trust.TaskTrust {
	return trust.TaskTrust{
		Keys:  trust.VerifierKeys{{State: trust.KeyActive, KeyID: "k1", Public: make(ed25519.PublicKey, ed25519.PublicKeySize)}},
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

func (noWork) SetsAfter(context.Context, int64, int) ([]trust.StoredSet, error) { return nil, nil }
