package vault

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// rule allows capabilities on one path of Vault's API.
type rule struct {
	path       string
	capability string
	// allowed lists the parameters that a call may have and the values allowed
	// for each; an empty list allows any value. nil allows any parameter.
	allowed map[string][]string
	// required lists the parameters that a call must have.
	required []string
}

// policies returns the policies of the two logins, and that for signing verifier
// sets, by name.
func (s *setup) policies() map[string]string {
	tasks, roots := taskKey(s.env), rootKey(s.env)
	publicKeys := []rule{canRead(transitMount + "/keys/" + tasks), canRead(transitMount + "/keys/" + roots)}
	ownToken := []rule{
		canRead("auth/token/lookup-self"),
		{path: "auth/token/renew-self", capability: "update"},
		{path: "auth/token/revoke-self", capability: "update"},
	}
	return map[string]string{
		// The worker signs tasks and no other document. It cannot rotate, export or
		// configure a key, and cannot issue certificates.
		workerName: render([]rule{canSign(tasks, task.PayloadType)}, publicKeys, ownToken),
		// The API issues node certificates and its own server certificate by CSR. It
		// cannot have a CA generate a key, use another role, sign a CSR verbatim or
		// change an issuer. The task key signs only the delegation of its lease key.
		apiName: render([]rule{
			{path: nodeMount + "/sign/" + nodeRole, capability: "update", required: []string{"csr", "uri_sans"},
				allowed: map[string][]string{"csr": nil, "uri_sans": {nodeURIs(s.env)}}},
			{path: apiMount + "/sign/" + apiRole, capability: "update", required: []string{"csr"}, allowed: s.serverParameters()},
			canRead(apiMount + "/roles/" + apiRole), // the names of its server certificate
			{path: nodeMount + "/issuers", capability: "list"}, canRead(nodeMount + "/issuer/+"),
			{path: apiMount + "/issuers", capability: "list"}, canRead(apiMount + "/issuer/+"),
			canSign(tasks, trust.LeaseKeyPayloadType),
		}, publicKeys, ownToken),
		// For an operator who runs gpuaas admin setup without a root token. Each
		// verifier set has two signatures: by the root key and by the task key.
		setsName: render([]rule{
			canSign(roots, trust.VerifierSetPayloadType),
			canSign(tasks, trust.VerifierSetPayloadType),
		}, publicKeys),
	}
}

func canRead(path string) rule { return rule{path: path, capability: "read"} }

// canSign allows signing documents of one payload type with a transit key. The
// call must name a key version: without one Vault uses the newest, so that a
// rotation alone would switch to a key that no node trusts. The policy does not
// name the version, because each rotation would have to change the policy at the
// same moment.
func canSign(key, payloadType string) rule {
	return rule{path: transitMount + "/sign/" + key, capability: "update", required: []string{"input", "key_version"},
		allowed: map[string][]string{"input": {signedPrefix(payloadType)}, "key_version": nil}}
}

// signedPrefix is a glob of the signed bytes of documents of one payload type.
// DSSE puts the payload type first, so a role that may sign nothing else signs no
// other document. Base64 preserves a prefix of whole triples.
func signedPrefix(payloadType string) string {
	prefix := fmt.Sprintf("DSSEv1 %d %s ", len(payloadType), payloadType)
	return base64.StdEncoding.EncodeToString([]byte(prefix[:len(prefix)/3*3])) + "*"
}

// serverParameters are the parameters for issuing the server certificate.
func (s *setup) serverParameters() map[string][]string {
	allowed := map[string][]string{"csr": nil}
	if len(s.dns) > 0 {
		allowed["alt_names"] = nameLists(s.dns)
	}
	if len(s.ips) > 0 {
		allowed["ip_sans"] = nameLists(s.ips)
	}
	return allowed
}

// nameLists returns each name, for Vault versions that check the elements of a
// list, and the whole list in order, for older versions that do not.
func nameLists(names []string) []string {
	if len(names) == 1 {
		return names
	}
	return append(slices.Clone(names), strings.Join(names, ","))
}

// render formats rules as a policy in HCL.
func render(groups ...[]rule) string {
	var b strings.Builder
	b.WriteString("# Managed by gpuaas admin setup.\n")
	for _, r := range slices.Concat(groups...) {
		fmt.Fprintf(&b, "path %q {\n  capabilities = %s\n", r.path, quoted([]string{r.capability}))
		if len(r.required) > 0 {
			fmt.Fprintf(&b, "  required_parameters = %s\n", quoted(r.required))
		}
		if r.allowed != nil {
			b.WriteString("  allowed_parameters = {\n")
			for _, name := range slices.Sorted(maps.Keys(r.allowed)) {
				fmt.Fprintf(&b, "    %q = %s\n", name, quoted(r.allowed[name]))
			}
			b.WriteString("  }\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func quoted(values []string) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = fmt.Sprintf("%q", v)
	}
	return "[" + strings.Join(list, ", ") + "]"
}
