// Package wire holds the bodies and headers of the node API and the admin API.
// The node API: enroll.go, poll.go, task.go.
package wire
