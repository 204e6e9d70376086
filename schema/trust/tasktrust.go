package trust

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// maxRootKeys limits the root keys of a TaskTrust.
const maxRootKeys = 2

// keyRoot marks a root key in the text form of a TaskTrust.
const keyRoot = "root"

// TaskTrust is a node's initial trust for verifying tasks: the keys of a verifier
// set, the root keys that sign later sets, and the floor below which the node
// accepts no set.
type TaskTrust struct {
	Keys VerifierSet
	// Roots verify VerifierSetDoc. Without a root key the node accepts no later
	// set and keeps Keys.
	Roots []VerifierKey
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
	raw, hexErr := hex.DecodeString(hash)
	if err != nil || version < 1 || hexErr != nil || len(raw) != 32 || strings.ToLower(hash) != hash {
		return VerifierSetRef{}, schema.Errorf(schema.KindInvalidRequest, "verifier set: malformed reference %q, want version:hash", s)
	}
	return VerifierSetRef{Version: version, Hash: hash}, nil
}

// TrustResult is the output of agent.update_trust: the verifier set that the node
// now uses and the CA bundles that it accepted. Version 0 is the set of the
// node's bundle.
type TrustResult struct {
	SetVersion int64  `json:"set_version"`
	SetHash    string `json:"set_hash,omitempty"`
	// The fingerprints are those of NodeTrust.
	CABundleFingerprint         string `json:"ca_bundle_fingerprint,omitempty"`
	NodeCertCABundleFingerprint string `json:"node_cert_ca_bundle_fingerprint,omitempty"`
}

// NodeTrust is the body of a 200 response to GET trust: the current CA bundles,
// under the field names of the bootstrap bundle. A fingerprint is the hex SHA-256
// of the first certificate's DER.
type NodeTrust struct {
	// CABundlePEM verifies the node API's server certificate.
	CABundlePEM         string `json:"ca_bundle_pem"`
	CABundleFingerprint string `json:"ca_bundle_fingerprint"`
	// NodeCertCABundlePEM verifies node certificates.
	NodeCertCABundlePEM         string `json:"node_cert_ca_bundle_pem"`
	NodeCertCABundleFingerprint string `json:"node_cert_ca_bundle_fingerprint"`
}

// ParseTaskTrust parses GPUAAS_TASK_SIGNING_PUBKEYS: comma-separated entries of
// three parts. state:key-id:base64 is a key (see ParseVerifierSet),
// root:key-id:base64 a root key (at most two), and floor:version:hash the set
// that the keys come from (at most one).
func ParseTaskTrust(s string) (TaskTrust, error) {
	var t TaskTrust
	var keys []string
	for entry := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		entry = strings.TrimSpace(entry)
		kind, _, _ := strings.Cut(entry, ":")
		var err error
		switch kind {
		case keyRoot:
			err = t.addRoot(entry)
		case "floor":
			err = t.setFloor(entry)
		default:
			keys = append(keys, entry)
		}
		if err != nil {
			return TaskTrust{}, err
		}
	}
	var err error
	t.Keys, err = ParseVerifierSet(strings.Join(keys, ","))
	return t, err
}

func (t *TaskTrust) addRoot(entry string) error {
	// Apart from the state, a root key has the same form as any key.
	k, err := parseVerifierKey(string(KeyActive) + strings.TrimPrefix(entry, keyRoot))
	if err != nil {
		return err
	}
	k.State = keyRoot
	if len(t.Roots) == maxRootKeys || slices.ContainsFunc(t.Roots, func(o VerifierKey) bool { return o.KeyID == k.KeyID }) {
		return schema.Errorf(schema.KindInvalidRequest, "verifier set: more than %d root keys, or a repeated one", maxRootKeys)
	}
	t.Roots = append(t.Roots, k)
	return nil
}

func (t *TaskTrust) setFloor(entry string) error {
	_, name, _ := strings.Cut(entry, ":")
	if t.Floor.Version != 0 {
		return schema.Errorf(schema.KindInvalidRequest, "verifier set: more than one floor")
	}
	floor, err := ParseVerifierSetRef(name)
	if err != nil {
		return err
	}
	t.Floor = floor
	return nil
}

// String renders the trust in the form that ParseTaskTrust accepts.
func (t TaskTrust) String() string {
	all := append(slices.Clone(t.Keys), t.Roots...)
	s := all.String()
	if t.Floor.Version > 0 {
		s += ",floor:" + t.Floor.String()
	}
	return s
}
