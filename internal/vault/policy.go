package vault

import (
	"embed"
	"fmt"
	"strings"
	"text/template"
)

//go:embed policies/*.hcl
var policyFiles embed.FS

// policyInput is what the policy files leave open.
type policyInput struct {
	TaskKey  string
	NodeURIs string
	DNS, IPs []string
}

// renderPolicy fills in the policy file of a role.
func renderPolicy(name string, in policyInput) (string, error) {
	t, err := template.New(name+".hcl").Option("missingkey=error").
		Funcs(template.FuncMap{"quoted": quotedNames}).
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
