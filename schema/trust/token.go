package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// TokenTTL is the life of an enrolment token: long enough for a slow first
// boot.
const TokenTTL = 24 * time.Hour

// TokenPrefix starts every enrolment token, so that scanners find one.
const TokenPrefix = "gpuet_"

// tokenSecretBytes is the length of a token's secret part.
const tokenSecretBytes = 32

// TokenPurpose is what a token is for.
type TokenPurpose string

// PurposeEnroll is the purpose of a first enrolment's token.
const PurposeEnroll TokenPurpose = "enroll"

// NewToken mints a token. text is TokenPrefix + id + "." + secret and goes to
// the node only; id and hash (SHA-256 of the secret) are what a database may
// keep.
func NewToken() (text, id string, hash []byte) {
	secret := make([]byte, tokenSecretBytes)
	rand.Read(secret)
	id = schema.NewID()
	sum := sha256.Sum256(secret)
	return TokenPrefix + id + "." + base64.RawURLEncoding.EncodeToString(secret), id, sum[:]
}

// ParseToken splits a token into its public id and the hash of its secret. A
// malformed token is KindUnauthenticated; the message never repeats it.
func ParseToken(text string) (id string, hash []byte, err error) {
	bad := schema.NewError(schema.KindUnauthenticated, "malformed enrolment token").WithReason("token_malformed")
	rest, ok := strings.CutPrefix(text, TokenPrefix)
	if !ok {
		return "", nil, bad
	}
	id, encoded, ok := strings.Cut(rest, ".")
	secret, decodeErr := base64.RawURLEncoding.Strict().DecodeString(encoded)
	// The decoder skips line breaks; a token has one spelling.
	if !ok || strings.ContainsAny(encoded, "\r\n") || !schema.IsID(id) || decodeErr != nil || len(secret) != tokenSecretBytes {
		return "", nil, bad
	}
	sum := sha256.Sum256(secret)
	return id, sum[:], nil
}
