package audit

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
)

// CheckpointPayloadType is the DSSE payload type of what a checkpoint's signature covers.
const CheckpointPayloadType = "application/vnd.gpuaas.audit-checkpoint.v1"

// MaxCheckpointText bounds the text of a signed checkpoint, in bytes.
const MaxCheckpointText = 512

// checkpointFields is the number of fields in the text of a signed checkpoint.
const checkpointFields = 7

// Head is the last event of a stream.
type Head struct {
	Stream string `json:"stream"`
	Seq    int64  `json:"seq"`
	Hash   string `json:"hash"`
}

// CheckpointBody is what a checkpoint commits to: the heads that changed since the
// checkpoint before, and the hash of that checkpoint. The newest checkpoint therefore
// commits to every stream. Numbers rise, with gaps after a restore of the database.
type CheckpointBody struct {
	Number int64  `json:"number"` // from 1
	Prev   string `json:"prev"`   // hash of the checkpoint before, empty for the first
	Heads  []Head `json:"heads"`  // by stream
}

// Encode returns the body's JSON, which is stored as it is, and its hash.
func (b CheckpointBody) Encode() (body []byte, hash string, err error) {
	if body, err = json.Marshal(b); err != nil {
		return nil, "", err
	}
	return body, schema.SHA256Hex(body), nil
}

// StoredCheckpoint is a signed checkpoint of the audit trail with its body.
type StoredCheckpoint struct {
	Body   []byte `json:"body"`   // JSON of a CheckpointBody, in base64
	Signed string `json:"signed"` // the text of the signed checkpoint
}

// CheckpointPage is the response to GET /api/v1/admin/audit/checkpoints?after=NUMBER:
// checkpoints in order of their number.
type CheckpointPage struct {
	Checkpoints []StoredCheckpoint `json:"checkpoints"`
	// More is true when a further page exists after the last number.
	More bool `json:"more"`
	// Keys are the public keys of the checkpoint key in Vault, in base64 by key ID.
	Keys map[string]ed25519.PublicKey `json:"keys"`
}

// Gap is the body of POST /api/v1/admin/audit/accept-gap, and its response.
type Gap struct {
	Reason string `json:"reason"`
	// Checkpoints is how many missing checkpoints were accepted, in the response.
	Checkpoints int64 `json:"checkpoints,omitempty"`
}

// Checkpoint is a signed checkpoint, in the short form that nodes keep.
type Checkpoint struct {
	Env       string
	Number    int64
	Hash      string    // of the body
	At        time.Time // seconds
	KeyID     string
	Signature []byte
}

// Signed returns the bytes that the signature covers.
func (c Checkpoint) Signed() []byte {
	return dsse.PAE(CheckpointPayloadType, c.statement())
}

func (c Checkpoint) statement() []byte {
	return fmt.Appendf(nil, "1 %s %d %s %d", c.Env, c.Number, c.Hash, c.At.Unix())
}

// String returns the checkpoint as text: version, environment, number, hash, time in
// seconds since 1970, key ID and signature in base64url, separated by spaces.
func (c Checkpoint) String() string {
	return string(c.statement()) + " " + c.KeyID + " " + base64.RawURLEncoding.EncodeToString(c.Signature)
}

// ParseCheckpoint parses the text of a checkpoint. It does not verify the signature.
// Errors are KindInvalidRequest.
func ParseCheckpoint(text string) (c Checkpoint, err error) {
	fields := strings.Split(text, " ")
	if len(text) > MaxCheckpointText || len(fields) != checkpointFields || fields[0] != "1" {
		return c, errCheckpoint()
	}
	seconds, malformed := strconv.ParseInt(fields[4], 10, 64)
	c = Checkpoint{Env: fields[1], Hash: fields[3], At: time.Unix(seconds, 0).UTC(), KeyID: fields[5]}
	if c.Number, err = strconv.ParseInt(fields[2], 10, 64); err != nil || malformed != nil || c.Number < 1 {
		return Checkpoint{}, errCheckpoint()
	}
	if hash, err := hex.DecodeString(c.Hash); err != nil || len(hash) != 32 {
		return Checkpoint{}, errCheckpoint()
	}
	if c.Signature, err = base64.RawURLEncoding.DecodeString(fields[6]); err != nil || c.String() != text {
		return Checkpoint{}, errCheckpoint()
	}
	return c, nil
}

// Verify reports whether one of the keys, by key ID, signed the checkpoint for the
// environment. A server may have sent the keys, so they may be malformed.
func (c Checkpoint) Verify(env string, keys map[string]ed25519.PublicKey) bool {
	key := keys[c.KeyID]
	return len(key) == ed25519.PublicKeySize && c.Env == env && ed25519.Verify(key, c.Signed(), c.Signature)
}

func errCheckpoint() error {
	return schema.NewError(schema.KindInvalidRequest, "the text is not an audit checkpoint").WithReason("checkpoint")
}
