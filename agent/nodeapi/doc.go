// Package nodeapi is the agent's client of the node API: HTTPS with the node's
// certificate, trusting only the configured CA bundle. It also keeps the server's
// time.
package nodeapi
