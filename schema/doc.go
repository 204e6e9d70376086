// Package schema owns every name and shape that outlives a process: node and
// instance states with the table of legal moves, ids, workflow inputs and
// results, the task envelope, error kinds, HTTP bodies and the audit record.
//
// It imports nothing of this project and no client library, so that the node
// agent, the CLI, the API and the worker can share it at no cost. Start with
// node.go (states and moves), then operation.go and task.go.
package schema
