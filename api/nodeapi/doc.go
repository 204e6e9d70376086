// Package nodeapi is the listener that node agents speak to: mutual TLS, a long
// poll for tasks, results, progress and heartbeats, and enrolment for those
// that have no certificate yet. A caller's identity is checked for every
// request and again whenever an open poll wakes, never once per connection.
// Start with API.Routes in api.go, then identity.go.
package nodeapi
