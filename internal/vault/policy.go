package vault

import (
	"embed"
	"encoding/base64"
	"fmt"
	"strings"
	"text/template"
)

//go:embed policies/*.hcl
var policyFiles embed.FS

// policyInput is what the policy files leave open.
type policyInput struct {
	TaskKey  string
	RootKey  string
	NodeURIs string
	DNS, IPs []string
}

// renderPolicy fills in the policy file of a role.
func renderPolicy(name string, in policyInput) (string, error) {
	t, err := template.New(name+".hcl").Option("missingkey=error").
		Funcs(template.FuncMap{"quoted": quotedNames, "signs": signedType}).
		ParseFS(policyFiles, "policies/"+name+".hcl")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, in)
	return b.String(), err
}

// quotedNames lists names as allowed values: each of them, for Vaults that look
// into a list, and the whole list in order, for older ones which do not.
func quotedNames(names []string) string {
	values := names
	if len(names) > 1 {
		values = append(append([]string{}, names...), joined(names))
	}
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = fmt.Sprintf("%q", v)
	}
	return strings.Join(quoted, ", ")
}

// signedType is the glob of what Vault is asked to sign for documents of one
// payload type: the payload type leads what DSSE signs, so a role that may send
// nothing else signs no other document. Base64 keeps a prefix of whole triples.
func signedType(payloadType string) string {
	lead := fmt.Sprintf("DSSEv1 %d %s ", len(payloadType), payloadType)
	return base64.StdEncoding.EncodeToString([]byte(lead[:len(lead)/3*3])) + "*"
}
