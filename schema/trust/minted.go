package trust

import "time"

// MintedToken is a minted token as the database keeps it (see NewToken).
type MintedToken struct {
	NodeID    string
	TokenID   string
	Hash      []byte // SHA-256 of the secret
	Purpose   TokenPurpose
	ExpiresAt time.Time
}
