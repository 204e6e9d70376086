package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// writeIdentity shows both sides of a node's identity: the certificate that the
// control plane holds for it, and the CA generations that it trusts.
func (e *printer) writeIdentity(w io.Writer, n wire.NodeView) {
	if n.Identity == nil {
		row(w, "Identity:", "none")
	} else {
		row(w, "Identity:", n.Identity.URI)
		e.writeCert(w, *n.Identity)
	}
	if n.IdentitySequence > 0 {
		row(w, "  Sequence:", fmt.Sprintf("%d of incarnation %d", n.IdentitySequence, n.Incarnation))
	}
	if n.NewestSetVersion > 0 && n.Identity != nil {
		row(w, "Trust:", fmt.Sprintf("verifier set %d of %d", n.SetVersion, n.NewestSetVersion))
	}
	if p := n.PendingIdentity; p != nil {
		row(w, "Pending:", "a certificate that was not used yet")
		e.writeCert(w, *p)
	}
	reissue := "gpuaas node reissue-enrollment " + n.Host
	if l := n.IdentityLock; l != nil {
		row(w, "Locked:", fmt.Sprintf("%s, since %s", l.Reason, e.stamp(l.Since)))
		row(w, "  Next:", reissue)
	}
	for _, ca := range n.TrustedCAs {
		row(w, "Trusted CA:", ca.Subject)
		row(w, "  Issuer:", dash(ca.Issuer))
		row(w, "  Valid:", e.validity(ca.NotBefore.IsZero(), ca.NotBefore.UTC().Format("2006-01-02"), e.stamp(ca.NotAfter)))
		row(w, "  SHA-256:", fingerprint(ca.Fingerprint))
	}
	if untrusted(n) {
		row(w, "Mismatch:", fmt.Sprintf("the issuer %q of the node's certificate is none of the trusted CAs: its requests are refused", n.Identity.Issuer))
		row(w, "  Next:", reissue)
	}
}

func (e *printer) writeCert(w io.Writer, c trust.CertFacts) {
	row(w, "  Subject:", dash(c.Subject))
	row(w, "  Issuer:", c.Issuer)
	row(w, "  Serial:", c.Serial)
	if !c.NotBefore.IsZero() {
		row(w, "  From:", e.stamp(c.NotBefore))
	}
	row(w, "  Expires:", e.stamp(c.NotAfter))
	row(w, "  SHA-256:", fingerprint(c.Fingerprint))
}

func (e *printer) validity(unknown bool, from, to string) string {
	if unknown {
		return "to " + to
	}
	return from + " to " + to
}

// untrusted reports whether the node's certificate is from a CA that is not
// trusted. Without a list of the trusted ones nothing can be said.
func untrusted(n wire.NodeView) bool {
	return n.Identity != nil && len(n.TrustedCAs) > 0 &&
		!slices.ContainsFunc(n.TrustedCAs, func(ca trust.CAFacts) bool { return ca.Subject == n.Identity.Issuer })
}

// fingerprint renders a hex digest as openssl does, for comparing by eye.
func fingerprint(hex string) string {
	if hex == "" {
		return "-"
	}
	var b strings.Builder
	for i, c := range strings.ToUpper(hex) {
		if i > 0 && i%2 == 0 {
			b.WriteByte(':')
		}
		b.WriteRune(c)
	}
	return b.String()
}
