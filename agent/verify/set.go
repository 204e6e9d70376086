package verify

import (
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
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

// setOnDisk is the content of setFile.
type setOnDisk struct {
	Set
	// Bundle is the set that the bundle named when it was last read. A set of a higher epoch may
	// have a lower version, and the same bundle must not replace it.
	Bundle trust.VerifierSetRef `json:"bundle,omitzero"`
}

// load reads the stored set; ok is false when there is none. The signatures of its
// document were verified before it was stored; the hash shows that it is unchanged.
func load(s disk.StateDir, env string) (f setOnDisk, ok bool, err error) {
	ok, err = s.ReadJSON(s.File(setFile), &f)
	set := f.Set
	if err == nil && ok && set.Document == nil { // the set of a bundle has no signed document
		_, err = trust.ParseTaskTrust(set.Doc.Keys.String())
	}
	if err != nil || set.Document == nil {
		return f, ok, err
	}
	parsed, err := trust.ParseVerifierSet(set.Document)
	switch {
	case err != nil:
		return setOnDisk{}, true, refuseSet(err)
	case parsed.Doc.Env != env:
		return setOnDisk{}, true, refusal.New(refusal.OfSet+trust.ReasonEnvironment, "the stored verifier set is for another environment")
	case parsed.Ref() != set.Ref():
		return setOnDisk{}, true, refusal.New(trust.ReasonSetFork, "the stored verifier set has changed")
	}
	f.Set = parsed
	return f, true, nil
}
