package trust

import (
	"slices"

	"github.com/gpuaas/gpuaas/schema/text"
)

// Role is what a subject of the admin API may do.
type Role string

// The roles. A viewer reads. An operator also starts operations and decides about
// them. An admin also does what cannot be undone. A bootstrapper only makes bootstrap
// scripts and bundles. A reporter only reports the health of nodes and reads the nodes.
const (
	RoleViewer       Role = "viewer"
	RoleOperator     Role = "operator"
	RoleAdmin        Role = "admin"
	RoleBootstrapper Role = "bootstrapper"
	RoleReporter     Role = "reporter"
)

// APITokenPrefix starts every token of the admin API that gpuaas admin token new
// makes, so that secret scanners recognize one.
const APITokenPrefix = "gpuat_"

// Roles returns every role.
func Roles() []Role {
	return []Role{RoleViewer, RoleOperator, RoleAdmin, RoleBootstrapper, RoleReporter}
}

// Allows reports whether a subject of role r may do what requires the role need. An
// operator and an admin may do what a bootstrapper and a reporter may.
func (r Role) Allows(need Role) bool {
	if need == RoleBootstrapper || need == RoleReporter {
		return r == need || r.Allows(RoleOperator)
	}
	order := []Role{RoleViewer, RoleOperator, RoleAdmin}
	have := slices.Index(order, r)
	return have >= 0 && have >= slices.Index(order, need)
}

// ValidSubject reports whether s may name a subject: 1 to 64 of a-z A-Z 0-9 . _ - @.
func ValidSubject(s string) bool { return text.IsToken(s, 64, "._-@") }
