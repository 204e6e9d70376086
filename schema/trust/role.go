package trust

import (
	"slices"

	"github.com/gpuaas/gpuaas/schema/text"
)

// Role is what a subject of the admin API may do.
type Role string

// The roles. A viewer reads; an operator also starts and decides; an admin also
// does what is final. A bootstrapper may only make bootstrap scripts and bundles.
const (
	RoleViewer       Role = "viewer"
	RoleOperator     Role = "operator"
	RoleAdmin        Role = "admin"
	RoleBootstrapper Role = "bootstrapper"
)

// Roles returns every role.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleAdmin, RoleBootstrapper} }

// Allows reports whether r may do what needs the role. RoleBootstrapper as a need
// is met by a bootstrapper, an operator and an admin.
func (r Role) Allows(need Role) bool {
	if need == RoleBootstrapper {
		return r == RoleBootstrapper || r.Allows(RoleOperator)
	}
	order := []Role{RoleViewer, RoleOperator, RoleAdmin}
	have := slices.Index(order, r)
	return have >= 0 && have >= slices.Index(order, need)
}

// ValidSubject reports whether s may name a subject: 1 to 64 of a-z A-Z 0-9 . _ - @.
func ValidSubject(s string) bool { return text.IsToken(s, 64, "._-@") }
