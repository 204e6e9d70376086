// Package nodeapi is the listener for node agents: mutual TLS, a long poll for
// tasks, results, progress and heartbeats, and enrollment for nodes without a
// certificate. Every request checks the caller's identity, and an open poll
// checks it again after every wake; a check is never valid for a whole
// connection. Start with API.Routes in api.go, then poller in poll.go,
// certificates in issue.go and authenticator in identity.go.
package nodeapi
