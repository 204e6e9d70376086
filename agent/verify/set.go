package verify

import (
	"encoding/json"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Reasons of verifier sets, and of tasks that are rejected because of one.
const (
	refusedSetOld     = trust.ReasonSetOld
	refusedSetGap     = trust.ReasonSetGap
	refusedSetFork    = trust.ReasonSetFork
	refusedSetExpired = "set_expired"
	refusedSetBehind  = "set_too_old"
	refusedSetHeld    = "set_withheld"
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
	return refuse(ofSet+strings.TrimPrefix(e.Reason, ofSet), "%s", e.Message)
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
		keys, err := trust.ParseVerifierKeys(f.Keys)
		return trust.Bundled(keys, ref), err
	}
	s, err := trust.ParseVerifierSet(f.Document)
	switch {
	case err != nil:
		return Set{}, refuseSet(err)
	case s.Doc.Env != env:
		return Set{}, refuse(ofSet+trust.ReasonEnvironment, "the stored verifier set is for another environment")
	case s.Ref() != ref:
		return Set{}, refuse(refusedSetFork, "the stored verifier set has changed")
	}
	return s, nil
}
