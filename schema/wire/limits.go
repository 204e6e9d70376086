package wire

import "time"

// Limits and timings of the node API.
const (
	MaxBodyBytes   = 64 << 10         // request body
	MaxResultBytes = 1 << 20          // request body of a task result
	MaxPollTimeout = 60 * time.Second // a longer PollRequest.WaitSeconds is cut
	MaxHeldTasks   = 64               // entries of PollRequest.HeldTasks
	MaxSession     = 128              // bytes of PollRequest.AgentSession
	MaxWorkloads   = 128              // entries of Heartbeat.Workloads; their longest names fit the body
	NonceBytes     = 16               // bytes of PollRequest.Nonce before base64url

	// HeartbeatInterval is the maximum time between two heartbeats of an agent that
	// reaches the server.
	HeartbeatInterval = 60 * time.Second
	ResultBackoffMin  = 500 * time.Millisecond
	ResultBackoffMax  = 30 * time.Second
	PollBackoffMax    = 60 * time.Second
)
