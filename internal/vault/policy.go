package vault

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"
	"text/template"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

//go:embed policies.hcl.tmpl
var policyTemplates string

// policy returns the text of a policy: workerName, apiName, secretIDsName, trustName or setsName.
func (s setup) policy(name string) (string, error) {
	var text strings.Builder
	templates, err := template.New("").Funcs(template.FuncMap{"signedPrefixes": signedPrefixes, "names": nameLists}).Parse(policyTemplates)
	if err == nil {
		err = templates.ExecuteTemplate(&text, name, map[string]any{
			"TaskKey": taskKey(s.env), "RootKey": rootKey(s.env), "CheckpointKey": checkpointKeyName(s.env), "NodeURIs": nodeURIs(s.env), "Env": s.env, "DNS": s.dns, "IPs": s.ips,
			"WorkerDocuments": []string{task.PayloadType, trust.RemovalPayloadType},
			"Checkpoint":      []string{audit.CheckpointPayloadType},
			"SigningKeys":     []string{taskKey(s.env), rootKey(s.env)},
			"Providers":       []string{providerMount + "/data/" + maasProvider},
			"LeaseKey":        []string{trust.LeaseKeyPayloadType}, "VerifierSet": []string{trust.VerifierSetPayloadType},
		})
	}
	if err != nil {
		return "", schema.Wrap(schema.KindInternal, err, "rendering the policy %s", name)
	}
	return text.String(), nil
}

// signedPrefix is a glob of the signed bytes of documents of one payload type.
// DSSE puts the payload type first, so a role that may sign nothing else signs no
// other document. Base64 preserves a prefix of whole triples.
func signedPrefix(payloadType string) string {
	prefix := fmt.Sprintf("DSSEv1 %d %s ", len(payloadType), payloadType)
	return base64.StdEncoding.EncodeToString([]byte(prefix[:len(prefix)/3*3])) + "*"
}

// signedPrefixes returns the elements of a list in HCL: the globs of payload types.
func signedPrefixes(payloadTypes []string) string {
	var globs []string
	for _, t := range payloadTypes {
		globs = append(globs, `"`+signedPrefix(t)+`"`)
	}
	return strings.Join(globs, ", ")
}

// nameLists returns a list in HCL of each name, for Vault versions that check the
// elements of a list, and of all names in order, for older versions that do not.
func nameLists(names []string) string {
	return fmt.Sprintf(`"%s", "%s"`, strings.Join(names, `", "`), strings.Join(names, ",")) // without quotes: see splitNames
}
