package stuck

import "github.com/gpuaas/gpuaas/schema/lifecycle"

// Node is a node, or a request about one, that needs attention although no operation of it is
// parked: a row of the table.
type Node struct {
	// Row is the name of the row, for example silent.
	Row    string              `json:"row"`
	NodeID string              `json:"node_id"`
	Host   string              `json:"host"`
	State  lifecycle.NodeState `json:"state,omitempty"`
	// OperationID and Action are the operation that holds the node, or the request that is not
	// claimed yet.
	OperationID string           `json:"operation_id,omitempty"`
	Action      lifecycle.Action `json:"action,omitempty"`
	Stuck       lifecycle.Stuck  `json:"stuck"`
	WebURL      string           `json:"web_url,omitempty"`
}

// MaxNodes bounds a list of nodes.
const MaxNodes = 200
