package store

import (
	"cmp"
	"context"
	"slices"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// The times of reservations.
const (
	// startFor is how long rounds try to start the operation of a reservation.
	startFor = lifecycle.StartWithin
	// claimFor is how long a reservation without an operation counts: until an operation that the last
	// of these rounds started can no longer claim its node.
	claimFor = startFor + lifecycle.StartWithin + lifecycle.RoundTimeout
)

// purposeRepair is the purpose of the reservations of health recovery.
const purposeRepair = "repair"

// A ledger is the one account of the nodes that operations may disturb at the same time, in one
// transaction. Repairs draw on it, and rollouts can:
//
//   - The owner of a reservation is one operation, by its ID. It is reserved before the operation is started.
//   - A reservation counts one node in each scope: the fleet, and the SKU, the rack and the region that the
//     node had when it was reserved.
//   - To reserve again for an operation changes nothing, so a repeated round is harmless.
//   - A reservation counts until its operation ended, however it ended, or was abandoned. That follows from
//     the operation's row and needs no call, so a worker that stops at any point leaks nothing. releaseEnded
//     only deletes rows.
//   - Until an operation claimed its node, its reservation counts for claimFor. A later round starts the
//     operation that toStart returns with the same ID, if the worker stopped between the two.
//   - withdraw ends a reservation early, and only while no operation claimed its node with it.
//   - The ledger enforces no limit: its user compares sizes with the policy. The user holds the lock of
//     LockBreaker from then until its commit, so that two users do not both take the last place.
type ledger struct{ q *sqlc.Queries }

// A reservation is the share of one operation.
type reservation struct {
	operationID, nodeID string
	sku, rack, region   string // rack is empty if the node has none
}

// inUse returns the reservations that count, the oldest first.
func (l ledger) inUse(ctx context.Context) ([]reservation, error) {
	rows, err := l.q.BudgetInUse(ctx, claimFor.Seconds())
	return convert(rows, func(r sqlc.BudgetInUseRow) reservation {
		return reservation{r.OperationID, r.NodeID, r.SKU, r.Rack, r.Region}
	}), err
}

// sizes returns the size of each scope, with the number of nodes that the reservations use.
func (l ledger) sizes(ctx context.Context, used []reservation) ([]recovery.Size, error) {
	rows, err := l.q.ScopeSizes(ctx)
	sizes := convert(rows, func(r sqlc.ScopeSizesRow) recovery.Size {
		return recovery.Size{Scope: recovery.Scope(r.Scope), Key: r.Key, Nodes: int(r.Nodes), GPUNodes: int(r.GpuNodes), Out: int(r.Out)}
	})
	for _, u := range used {
		for scope, key := range u.scopes() {
			i := slices.IndexFunc(sizes, func(s recovery.Size) bool { return s.Scope == scope && s.Key == key })
			if i < 0 { // its last node has left the scope
				sizes = append(sizes, recovery.Size{Scope: scope, Key: key})
				i = len(sizes) - 1
			}
			sizes[i].Busy++
		}
	}
	slices.SortFunc(sizes, func(a, b recovery.Size) int { return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key)) })
	return sizes, err
}

// scopes returns the key of each scope that the reservation counts in.
func (r reservation) scopes() map[recovery.Scope]string {
	scopes := map[recovery.Scope]string{recovery.ScopeFleet: "", recovery.ScopeSKU: r.sku, recovery.ScopeRegion: r.region}
	if r.rack != "" {
		scopes[recovery.ScopeRack] = r.rack
	}
	return scopes
}

// reserve reserves for an operation that toStart returns until it is started. decisionID is why.
func (l ledger) reserve(ctx context.Context, r reservation, decisionID string, in lifecycle.OperationInput) error {
	return l.q.Reserve(ctx, sqlc.ReserveParams{OperationID: r.operationID, Purpose: purposeRepair, NodeID: r.nodeID, SKU: r.sku, Rack: r.rack,
		Region: r.region, DecisionID: &decisionID, Input: in})
}

// reserveClaimed reserves for an operation that claims its node now and was not decided by a round.
func (l ledger) reserveClaimed(ctx context.Context, operationID, nodeID string) error {
	return l.q.ReserveClaimed(ctx, operationID, nodeID)
}

// toStart returns the operations that are reserved, and whose start is not confirmed.
func (l ledger) toStart(ctx context.Context) ([]lifecycle.OperationInput, error) {
	rows, err := l.q.StartsToConfirm(ctx, startFor.Seconds())
	return convert(rows, func(r sqlc.StartsToConfirmRow) lifecycle.OperationInput { return r.Input }), err
}

// confirm records that the operation was started.
func (l ledger) confirm(ctx context.Context, operationID string) error {
	return l.q.ConfirmStart(ctx, operationID)
}

// claim reports whether the operation still has its reservation, as it claims its node.
func (l ledger) claim(ctx context.Context, operationID string) (reserved bool, err error) {
	rows, err := l.q.ClaimReservation(ctx, operationID)
	return rows > 0, err
}

// withdraw ends the reservation of an operation that does not run, and returns the decision to which it
// belongs: empty, and nothing changed, if there is no reservation or the operation claimed its node.
func (l ledger) withdraw(ctx context.Context, operationID string) (decisionID string, err error) {
	rows, err := l.q.ReleaseReservation(ctx, operationID)
	if err != nil || len(rows) == 0 || rows[0].DecisionID == nil {
		return "", err
	}
	return *rows[0].DecisionID, nil
}

// withdrawAll ends the reservations that toStart returns, and returns their operations.
func (l ledger) withdrawAll(ctx context.Context) (operations []string, err error) {
	return l.q.WithdrawStarts(ctx)
}

// releaseEnded deletes the reservations that do not count any longer.
func (l ledger) releaseEnded(ctx context.Context) error {
	return l.q.ReleaseEnded(ctx, claimFor.Seconds())
}
