package trust

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Identity is what a node certificate's URI SAN says.
type Identity struct {
	Env         string
	NodeID      string
	Incarnation int64
}

// URI returns spiffe://<env>/node/<node_id>/<incarnation>, the only subject
// name a node certificate carries.
func (i Identity) URI() string {
	return fmt.Sprintf("spiffe://%s/node/%s/%d", i.Env, i.NodeID, i.Incarnation)
}

// ParseIdentity parses a node certificate's URI SAN. Any other form is a
// KindInvalidNodeIdentity error with reason identity_mismatch.
func ParseIdentity(u *url.URL) (Identity, error) {
	bad := schema.NewError(schema.KindInvalidNodeIdentity, "the certificate names no node of this system").
		WithReason(schema.ReasonIdentityMismatch)
	if u == nil || u.Scheme != "spiffe" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return Identity{}, bad
	}
	parts := strings.Split(u.Path, "/")
	if len(parts) != 4 || parts[0] != "" || parts[1] != "node" || !schema.IsID(parts[2]) {
		return Identity{}, bad
	}
	n, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != parts[3] {
		return Identity{}, bad
	}
	return Identity{Env: u.Host, NodeID: parts[2], Incarnation: n}, nil
}
