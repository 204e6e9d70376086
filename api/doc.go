// Package api contains the HTTP side of gpuaas: nodeapi for node agents, adminapi
// for operators, relay from Postgres to Temporal, metrics, and edge, which both
// listeners share. Its only code is a test that compares the handlers with
// schema/openapi.yaml. Start with nodeapi/api.go.
package api
