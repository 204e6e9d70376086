package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// TokenTTL is the lifetime of an enrollment token: long enough for a slow first
// boot.
const TokenTTL = 24 * time.Hour

// TokenPrefix starts every token, so that secret scanners recognize one.
const TokenPrefix = "gpuet_"

// tokenSecretBytes is the length of a token's secret part.
const tokenSecretBytes = 32

// TokenPurpose is the purpose for which a token was minted.
type TokenPurpose string

// The token purposes.
const (
	// PurposeEnroll is for a node's first enrollment.
	PurposeEnroll TokenPurpose = "enroll"
	// PurposeReissue is for re-enrolling a known node on an operator's request.
	// It keeps the node's state and starts the next incarnation when claimed.
	PurposeReissue TokenPurpose = "reissue"
	// PurposeRecover lets an enrolled node without a usable certificate return.
	// It requires the node's recovery key.
	PurposeRecover TokenPurpose = "recover"
)

// MintedToken is a token as the database stores it: see NewToken.
type MintedToken struct {
	NodeID    string
	TokenID   string
	Hash      []byte // SHA-256 of the secret
	Purpose   TokenPurpose
	ExpiresAt time.Time
}

// IdentityToken is the response to POST
// /internal/v1/nodes/{node_id}/tasks/{task_id}/identity-token: the token with which the node
// enrolls in its next incarnation.
type IdentityToken struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// NewToken mints a token. text is TokenPrefix + id + "." + secret and is sent
// only to the node; a database may store id and hash (SHA-256 of the secret).
func NewToken() (text, id string, hash []byte) {
	secret := make([]byte, tokenSecretBytes)
	rand.Read(secret)
	id = schema.NewID()
	sum := sha256.Sum256(secret)
	return TokenPrefix + id + "." + base64.RawURLEncoding.EncodeToString(secret), id, sum[:]
}

// Mint makes a token of a node, and what the database stores of it.
func Mint(nodeID string, purpose TokenPurpose, expires time.Time) (text string, m MintedToken) {
	text, id, hash := NewToken()
	return text, MintedToken{NodeID: nodeID, TokenID: id, Hash: hash, Purpose: purpose, ExpiresAt: expires}
}

// ParseToken splits a token into its public ID and the hash of its secret. A
// malformed token is KindUnauthenticated; the message never repeats it.
func ParseToken(text string) (id string, hash []byte, err error) {
	bad := schema.NewError(schema.KindUnauthenticated, "malformed enrollment token").WithReason("token_malformed")
	rest, ok := strings.CutPrefix(text, TokenPrefix)
	if !ok {
		return "", nil, bad
	}
	id, encoded, ok := strings.Cut(rest, ".")
	secret, decodeErr := base64.RawURLEncoding.Strict().DecodeString(encoded)
	// The decoder skips line breaks, but a token has only one spelling.
	if !ok || strings.ContainsAny(encoded, "\r\n") || !schema.IsID(id) || decodeErr != nil || len(secret) != tokenSecretBytes {
		return "", nil, bad
	}
	sum := sha256.Sum256(secret)
	return id, sum[:], nil
}
