package temporal

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// NeedsOther reports whether Setup failed because the namespace or its search attributes
// must be created by someone else, as Instructions says.
func NeedsOther(err error) bool {
	e := schema.AsError(err)
	return e != nil && slices.Contains([]string{reasonNoNamespace, reasonNoAttributes, reasonForbidden, reasonUnimplemented}, e.Reason)
}

// Instructions returns the commands that create the namespace and its search attributes
// where Setup may not: on Temporal Cloud with tcld or Terraform, and on a self-hosted
// cluster with the temporal command and a credential of the role admin.
func (c Installation) Instructions() string {
	types := attributeTypes()
	var tcld, terraform, cli []string
	for _, name := range slices.Sorted(maps.Keys(types)) {
		kind := types[name].String()
		tcld = append(tcld, fmt.Sprintf("--sa %s=%s", name, kind))
		terraform = append(terraform, fmt.Sprintf("    %s = %q", name, kind))
		cli = append(cli, fmt.Sprintf("--name %s --type %s", name, kind))
	}
	const more = " \\\n  "
	return strings.NewReplacer("NAMESPACE", c.namespace, "DAYS", fmt.Sprint(int(retention.Hours()/24)), "HOURS", fmt.Sprint(int(retention.Hours()))).Replace(
		`# Temporal Cloud, with tcld. The namespace is NAME.ACCOUNT. Leave out the first command if it exists.
tcld namespace create --namespace NAMESPACE --region REGION --auth-method api_key --retention-days DAYS
tcld namespace search-attributes add --namespace NAMESPACE` + more + strings.Join(tcld, more) + `

# Temporal Cloud, with Terraform.
resource "temporalcloud_namespace_search_attribute" "gpuaas" {
  for_each = {
` + strings.Join(terraform, "\n") + `
  }
  namespace_id = "NAMESPACE"
  name         = each.key
  type         = each.value
}

# A self-hosted cluster, with a credential of the role admin.
temporal operator namespace create --namespace NAMESPACE --retention HOURSh
temporal operator search-attribute create --namespace NAMESPACE` + more + strings.Join(cli, more) + "\n")
}
