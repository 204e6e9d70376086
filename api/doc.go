// Package api is the HTTP edge of gpuaas: nodeapi for node agents, adminapi for
// operators, relay from Postgres to Temporal, metrics, and edge, which the two
// listeners share. It has no code of its own; its test holds the handlers to
// schema/openapi.yaml. Start with nodeapi/api.go.
package api
