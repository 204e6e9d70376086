// Package adminapi is the listener that operators and their tools speak to:
// inventory, lifecycle actions, audit and operations under /api/v1/admin, by
// bearer token. Lifecycle requests start the same workflows as the CLI. Start
// with API.Routes in api.go.
package adminapi
