package trust

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Identity is the node identity in a certificate's URI SAN.
type Identity struct {
	Env         string
	NodeID      string
	Incarnation int64
}

// ValidEnv reports whether env is the name of an environment: 1 to 40 lower-case
// letters, digits, dots and hyphens, the first and the last a letter or digit. The
// name is part of trust domains, paths and key IDs.
func ValidEnv(env string) bool {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,38}[a-z0-9])?$`).MatchString(env)
}

// IssueMethod is the method by which an identity was issued.
type IssueMethod string

// The issue methods.
const (
	IssuedByEnroll  IssueMethod = "enroll"
	IssuedByRenew   IssueMethod = "renew"
	IssuedByRecover IssueMethod = "recover"
)

// URI returns spiffe://<env>/node/<node_id>/<incarnation>, the only subject name
// in a node certificate.
func (i Identity) URI() string {
	return fmt.Sprintf("spiffe://%s/node/%s/%d", i.Env, i.NodeID, i.Incarnation)
}

// ParseIdentity parses a node certificate's URI SAN, which must be spelled as URI
// spells it. Any other form is a KindInvalidNodeIdentity error with reason
// identity_mismatch.
func ParseIdentity(u *url.URL) (Identity, error) {
	if u != nil {
		parts := strings.Split(u.Path, "/")
		n, err := strconv.ParseInt(parts[len(parts)-1], 10, 64)
		if err == nil && n >= 1 && len(parts) == 4 && schema.IsID(parts[2]) && u.Host != "" {
			if id := (Identity{Env: u.Host, NodeID: parts[2], Incarnation: n}); id.URI() == u.String() {
				return id, nil
			}
		}
	}
	return Identity{}, schema.NewError(schema.KindInvalidNodeIdentity, "the certificate does not name a node of this system").
		WithReason(schema.ReasonIdentityMismatch)
}
