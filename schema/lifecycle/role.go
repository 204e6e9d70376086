package lifecycle

import "github.com/gpuaas/gpuaas/schema/trust"

// Role returns the role that starts the action. What ends the node's machine cannot be undone.
func (p Plan) Role() trust.Role {
	if p.Final() {
		return trust.RoleAdmin
	}
	return trust.RoleOperator
}

// Role returns the role that makes the decision. A forced phase runs without its safety check.
func (d Decision) Role() trust.Role {
	if d == DecisionForce {
		return trust.RoleAdmin
	}
	return trust.RoleOperator
}
