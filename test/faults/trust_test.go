package faults_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// startTrust is what every node judges tasks with. Nothing in the lives of
// identities is signed with it.
func startTrust() schema.TaskTrust {
	return schema.TaskTrust{
		Keys:  schema.VerifierSet{{State: schema.KeyActive, KeyID: "k1", Public: make(ed25519.PublicKey, ed25519.PublicKeySize)}},
		Floor: schema.SetFloor{Version: 1, Hash: strings.Repeat("0", 64)},
	}
}

// noWork stands for the signer of grants and the keeper of verifier sets where
// no task is ever stored: it lets polls look for one.
type noWork struct{}

func (noWork) Good() (<-chan struct{}, error) { return nil, nil }

func (noWork) Sign(schema.TaskGrant) (grant, key json.RawMessage, err error) {
	return nil, nil, schema.NewError(schema.KindInternal, "nothing is to be granted here")
}

func (noWork) NewestSet(context.Context) (schema.StoredSet, error) {
	floor := startTrust().Floor
	return schema.StoredSet{Version: floor.Version, Hash: floor.Hash}, nil
}

func (noWork) SetsAfter(context.Context, int64, int) ([]schema.StoredSet, error) { return nil, nil }
