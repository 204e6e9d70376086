package verify

import (
	"encoding/json"
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Set is a verifier set, or the keys of a bundle.
type Set = trust.VerifierSet

// refuseSet converts an error of trust.VerifierSet. Its reasons get the prefix of
// verifier sets unless they have it.
func refuseSet(err error) error {
	if err == nil {
		return nil
	}
	e := schema.AsError(err)
	return refusal.New(refusal.OfSet+strings.TrimPrefix(e.Reason, refusal.OfSet), "%s", e.Message)
}

// storedSet is the set in use as the state directory stores it.
type storedSet struct {
	Version int64  `json:"version"`
	Hash    string `json:"hash"`
	// Document is the set's envelope. Without one, Keys are a bundle's keys in
	// their text form.
	Document json.RawMessage `json:"document,omitempty"`
	Keys     string          `json:"keys,omitempty"`
}

// toStored returns the set's stored form.
func toStored(s Set) storedSet {
	out := storedSet{Version: s.Doc.Version, Hash: s.Hash, Document: s.Document}
	if s.Document == nil {
		out.Keys = s.Doc.Keys.String()
	}
	return out
}

// held parses a stored set. Its signatures were verified before it was stored; its
// hash shows that it is unchanged.
func (f storedSet) held(env string) (Set, error) {
	ref := trust.VerifierSetRef{Version: f.Version, Hash: f.Hash}
	if len(f.Document) == 0 {
		stored, err := trust.ParseTaskTrust(f.Keys)
		return trust.Bundled(stored.Keys, ref), err
	}
	s, err := trust.ParseVerifierSet(f.Document)
	switch {
	case err != nil:
		return Set{}, refuseSet(err)
	case s.Doc.Env != env:
		return Set{}, refusal.New(refusal.OfSet+trust.ReasonEnvironment, "the stored verifier set is for another environment")
	case s.Ref() != ref:
		return Set{}, refusal.New(trust.ReasonSetFork, "the stored verifier set has changed")
	}
	return s, nil
}
