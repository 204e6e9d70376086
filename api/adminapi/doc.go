// Package adminapi is the listener for operators and their tools: inventory,
// lifecycle actions, operations, node tasks, the audit trail and the event stream
// under /api/v1/admin, by bearer token. Lifecycle requests start the same workflows
// as the CLI. Start with API.Endpoints in api.go.
package adminapi
