package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// RecordRefusals audits refused requests without an identity in the system stream, as
// nodeapi.Identities specifies.
func (s *Identities) RecordRefusals(ctx context.Context, refused []nodeapi.RefusedRequests) error {
	return s.unauthenticated.write(ctx, "auditing refused requests", func(_ context.Context, tx *tx) error {
		for _, r := range refused {
			tx.note(audit.Event{
				Stream: audit.SystemStream, Actor: unauthenticated, Action: r.Action, Target: r.Network, Result: audit.Refused,
				Reason: r.Reason, CorrelationID: r.CorrelationID, Detail: map[string]string{
					"requests": strconv.FormatInt(r.Requests, 10), "path_node": r.PathNode, "remote_addr": r.RemoteAddr,
					"first": r.First.UTC().Format(time.RFC3339), "last": r.Last.UTC().Format(time.RFC3339)}})
		}
		return nil
	})
}
