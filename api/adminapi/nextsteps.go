package adminapi

import "github.com/gpuaas/gpuaas/schema"

// NextStep returns the next step of an error that names none of its own.
func NextStep(k schema.Kind) string {
	switch k {
	case schema.KindInvalidRequest:
		return "correct the request; the API reference is schema/openapi.yaml"
	case schema.KindNotFound:
		return "compare the name or ID with gpuaas node list, gpuaas op list or gpuaas task list --all, and the path with the API reference, schema/openapi.yaml"
	case schema.KindUnauthenticated:
		return "send the header Authorization: Bearer TOKEN with a token of this API; gpuaas login stores one"
	case schema.KindForbidden:
		return "use a token of a subject with the role that this needs"
	case schema.KindRateLimited:
		return "repeat the request later"
	case schema.KindServiceUnavailable, schema.KindAgentSilent:
		return "repeat the request; gpuaas stuck shows the cause, and without the API's database, lifecycle and op commands work with --direct"
	case schema.KindKeyInUse:
		return "send a new idempotency key"
	case schema.KindAlreadyExists:
		return "choose another name"
	case schema.KindInvalidNodeIdentity, schema.KindTokenConsumed, schema.KindTokenExpired:
		return "gpuaas node show NODE; for a new token: gpuaas node bootstrap-script NODE"
	case schema.KindNodeInUse, schema.KindOperationInProgress, schema.KindLeaseLost, schema.KindFenced, schema.KindUnfit, schema.KindDecisionOutdated, schema.KindClaimExpired:
		return "gpuaas node show NODE shows the operation that holds the node"
	case schema.KindTaskFailed, schema.KindTaskRefused, schema.KindTaskStatus:
		return "gpuaas task list --node NODE --all shows the tasks and their results"
	case schema.KindInternal:
	}
	return "search the log of gpuaas-api for the correlation ID of this response"
}
