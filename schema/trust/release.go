package trust

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// ReleasePayloadType is the DSSE payload type of a Release.
const ReleasePayloadType = "application/vnd.gpuaas.agent-release.v1+json"

const (
	// MaxReleaseBytes is the largest binary of a release.
	MaxReleaseBytes = 128 << 20
	// MaxReleaseDocument is the largest signed release. Every agent.upgrade task contains
	// one.
	MaxReleaseDocument = 4 << 10
	// maxReleaseKeys bounds the keys of releases: one in use and its successor, twice.
	maxReleaseKeys = 4
	maxVersion     = 64
)

// Release is the signed body that names a binary of the agent: a DSSE payload of type
// ReleasePayloadType. A release key signs it, which the control plane does not have, so
// that the control plane can choose among signed binaries and cannot make one.
type Release struct {
	V int `json:"v"` // 1
	// Version is what the binary reports as its version. It has the characters of a file
	// name.
	Version string `json:"version"`
	Size    int64  `json:"size"`   // bytes of the binary
	SHA256  string `json:"sha256"` // hex, of the binary
}

// The architectures (GOARCH) for which the agent is built.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
)

// ReleaseFile is the name of the signed document of a version for the binary of an architecture, in the
// folder GPUAAS_AGENT_RELEASES. A document does not name its architecture, because agents in service
// reject unknown fields: VERSION@arm64.json is for arm64, and VERSION.json for amd64 and for a node that
// has not reported its architecture. "@" is in no version.
func ReleaseFile(version, arch string) string {
	if arch == ArchARM64 {
		version += "@" + arch
	}
	return version + ".json"
}

// SignedReleases are the signed documents of one version of the agent, by architecture; empty for none.
type SignedReleases struct{ AMD64, ARM64 string }

// ValidVersion reports whether a text can be the version of a release.
func ValidVersion(v string) bool {
	return text.IsToken(v, maxVersion, "._+-") && !strings.HasPrefix(v, ".") && !strings.HasPrefix(v, "-")
}

func (r Release) check() error {
	sum, err := hex.DecodeString(r.SHA256)
	switch {
	case r.V != 1:
		return reject(ReasonVersion, "the release has version %d of the format, want 1", r.V)
	case !ValidVersion(r.Version):
		return reject(ReasonBody, "the release has no valid version")
	case r.Size < 1 || r.Size > MaxReleaseBytes:
		return reject(ReasonBody, "the binary of the release has %d bytes, want 1 to %d", r.Size, MaxReleaseBytes)
	case err != nil || len(sum) != 32 || strings.ToLower(r.SHA256) != r.SHA256:
		return reject(ReasonBody, "the release has no valid SHA-256")
	}
	return nil
}

// ParseReleaseKeys parses release keys: the standard base64 of Ed25519 public keys,
// separated by commas, without repetition. An empty text has no keys.
func ParseReleaseKeys(list string) ([]VerifierKey, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var keys []VerifierKey
	for entry := range strings.SplitSeq(list, ",") {
		raw, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(entry))
		switch {
		case err != nil || len(raw) != ed25519.PublicKeySize:
			return nil, schema.NewError(schema.KindInvalidRequest, "a release key must be the base64 of an Ed25519 public key")
		case slices.ContainsFunc(keys, func(k VerifierKey) bool { return k.Public.Equal(ed25519.PublicKey(raw)) }):
			return nil, schema.NewError(schema.KindInvalidRequest, "a release key is listed twice")
		case len(keys) == maxReleaseKeys:
			return nil, schema.NewError(schema.KindInvalidRequest, "there are more than %d release keys", maxReleaseKeys)
		}
		keys = append(keys, releaseKey(raw))
	}
	return keys, nil
}

// releaseKey names a key after its bytes, so that it needs no other name.
func releaseKey(public ed25519.PublicKey) VerifierKey {
	return VerifierKey{KeyID: "release-" + schema.SHA256Hex(public)[:16], Public: public, State: KeyActive}
}

// OpenRelease verifies that one of the keys signed the document, and returns the release
// in it. Errors are KindInvalidRequest with a reason.
func OpenRelease(document []byte, keys []VerifierKey) (r Release, err error) {
	if len(document) > MaxReleaseDocument {
		return r, reject(ReasonTooLarge, "the release is larger than %d bytes", MaxReleaseDocument)
	}
	body, _, err := OpenEnvelope(ReleasePayloadType, document, keys)
	if err != nil {
		return r, err
	}
	if err := schema.DecodeStrict(body, MaxReleaseDocument, &r); err != nil {
		return Release{}, reject(ReasonBody, "cannot parse the release: %v", err)
	}
	return r, r.check()
}

// SignRelease returns the signed document of a release.
func SignRelease(r Release, key ed25519.PrivateKey) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return SignEnvelope(ReleasePayloadType, body, key)
}
