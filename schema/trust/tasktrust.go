package trust

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Limits of the keys of a TaskTrust.
const (
	maxTrustKeys = 4
	maxRootKeys  = 2
)

// TaskTrust is a node's initial trust for verifying tasks: the keys of a verifier
// set, the root keys that sign later sets, and the floor below which the node
// accepts no set.
type TaskTrust struct {
	Keys VerifierKeys
	// Roots verify VerifierSetDoc. Without a root key the node accepts no later
	// set and keeps Keys.
	Roots VerifierKeys
	Floor VerifierSetRef
}

// VerifierSetRef identifies a verifier set. Version 0 means none.
type VerifierSetRef struct {
	Version int64
	Hash    string // hex SHA-256 of the set's signed body
}

// String renders the reference as version:hash, the form that ParseVerifierSetRef
// accepts.
func (f VerifierSetRef) String() string { return strconv.FormatInt(f.Version, 10) + ":" + f.Hash }

// ParseVerifierSetRef parses version:hash: a version of at least 1 and 64
// lower-case hex digits. Errors are KindInvalidRequest.
func ParseVerifierSetRef(s string) (VerifierSetRef, error) {
	number, hash, _ := strings.Cut(s, ":")
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil || version < 1 || !text.IsSHA256Hex(hash) {
		return VerifierSetRef{}, schema.NewError(schema.KindInvalidRequest, "verifier set: malformed reference %q, want version:hash", s)
	}
	return VerifierSetRef{Version: version, Hash: hash}, nil
}

// ParseTaskTrust parses GPUAAS_TASK_SIGNING_PUBKEYS: comma-separated entries of
// three parts. state:key-id:base64 is a key, where state is active (exactly one
// key), staged, grace or revoked, key-id is [A-Za-z0-9._-]{1,64} and base64 is the
// standard encoding of the 32 key bytes. root:key-id:base64 is a root key (at most
// two), and floor:version:hash the set that the keys come from (at most one). It
// rejects repeated keys and more than four. Errors are KindInvalidRequest.
func ParseTaskTrust(s string) (TaskTrust, error) {
	var t TaskTrust
	for entry := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		if err := t.add(strings.TrimSpace(entry)); err != nil {
			return TaskTrust{}, err
		}
	}
	if err := cmp.Or(t.Roots.check(maxRootKeys, KeyRoot), t.Keys.checkSet(maxTrustKeys)); err != nil {
		return TaskTrust{}, err
	}
	return t, nil
}

func (t *TaskTrust) add(entry string) (err error) {
	if ref, ok := strings.CutPrefix(entry, "floor:"); ok {
		if t.Floor.Version != 0 {
			return schema.NewError(schema.KindInvalidRequest, "verifier set: more than one floor")
		}
		t.Floor, err = ParseVerifierSetRef(ref)
		return err
	}
	k, err := parseVerifierKey(entry)
	if k.State == KeyRoot {
		t.Roots = append(t.Roots, k)
	} else {
		t.Keys = append(t.Keys, k)
	}
	return err
}

// String renders the trust in the form that ParseTaskTrust accepts.
func (t TaskTrust) String() string {
	s := slices.Concat(t.Keys, t.Roots).String()
	if t.Floor.Version > 0 {
		s += ",floor:" + t.Floor.String()
	}
	return s
}
