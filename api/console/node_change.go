package console

import (
	"fmt"
	"net/url"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nodeChange is a change of a node that starts no operation.
type nodeChange struct {
	// Name is that of the command and of the endpoint.
	Name, Does string
	Role       trust.Role
	// Optional says that the admin API needs no reason.
	Optional bool
	// Offered reports whether the page of the node shows it.
	Offered func(wire.NodeView) bool
}

// nodeChanges are the changes that the page of a node offers.
func nodeChanges() []nodeChange {
	return []nodeChange{
		{Name: "rehydrate", Role: trust.RoleOperator, Optional: true,
			Does: "Record the abandoned operations of the node as failed, and restore the node's state if no action can start in it. Nothing changes on the node.",
			Offered: func(n wire.NodeView) bool {
				return n.Operation != nil && n.Operation.Status == lifecycle.OperationAbandoned
			}},
		{Name: "lock", Role: trust.RoleOperator,
			Does: "Reject the node's identity within five seconds, because its key may be stolen. Workloads continue, and the node gets no tasks: a destructive task that runs there is lost, and its operation parks. Enrollment and reissue tokens of the node become void.",
			Offered: func(n wire.NodeView) bool {
				return n.IdentityLock == nil && n.State.Enrolled() && n.State != lifecycle.NodeRemoved
			}},
		{Name: "unlock", Role: trust.RoleAdmin,
			Does: "Accept the node's identity again from its agent's next poll on, at most 15 minutes later, and dismiss an alarm about it.",
			Offered: func(n wire.NodeView) bool {
				if n.IdentityLock != nil {
					return n.IdentityLock.Reason == trust.LockedByOperator
				}
				return n.IdentityAlarm != nil
			}},
	}
}

// changeRoutes returns the form of each change of a node.
func changeRoutes() (all []Route) {
	for _, c := range nodeChanges() {
		path := "/nodes/{node}/" + c.Name
		all = append(all, get(path, c.ask), post(path, c.Role, c.apply))
	}
	return all
}

// row is the change in the list of what can be started on a node.
func (c nodeChange) row(r *request, n wire.NodeView) action {
	row := action{Action: c.Name, Does: c.Does, Link: nodeLink(n.ID, c.Name), Command: c.command(n)}
	if !r.May(c.Role) {
		row.Needs = c.Role
	}
	return row
}

func (c nodeChange) command(n wire.NodeView) string {
	return fmt.Sprintf("gpuaas node %s %s --reason %s", c.Name, n.Host, lifecycle.ReasonPlaceholder)
}

// nodeLink is the page of an action or a change of a node, named by ID or host name.
func nodeLink(node, name string) string {
	return Prefix + "/nodes/" + url.PathEscape(node) + "/" + name
}

func (c nodeChange) form(r *request, n wire.NodeView) confirmPage {
	p := confirmPage{Title: c.Name + " " + n.Host, Does: c.Does, Harm: lifecycle.HarmNone, Command: c.command(n), Key: newKey(),
		ReasonRequired: !c.Optional, Button: c.Name, Back: Prefix + "/nodes/" + n.ID}
	if !r.May(c.Role) {
		p.MayNot = "it needs the role " + string(c.Role)
	}
	return p
}

// ask asks for the reason of the change.
func (c nodeChange) ask(r *request) (view, error) {
	n, err := readNode(r)
	if err != nil {
		return view{}, err
	}
	return c.form(r, n).form(), nil
}

// apply makes the change, and shows the node. A repeated one changes nothing.
func (c nodeChange) apply(r *request) (view, error) {
	n, err := readNode(r)
	if err != nil {
		return view{}, err
	}
	p := c.form(r, n)
	if v, ok := p.answered(r); !ok {
		return v, nil
	}
	_, err = submit[struct{}](r, "/nodes/"+n.ID+"/"+c.Name, wire.TaskDecision{Reason: r.PostFormValue("reason")}, r.PostFormValue("key"))
	return view{Location: p.Back}, err
}
