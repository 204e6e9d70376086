package wire

import "time"

// Limits and timings of the node API.
const (
	MaxBodyBytes   = 64 << 10         // request body
	MaxPollBytes   = 768 << 10        // request body of a poll; the longest valid one fits
	MaxResultBytes = 1 << 20          // request body of a task result
	MaxOutput      = 256 << 10        // bytes of task.Result.Output as encoding/json writes it, with <, > and & escaped
	MaxMessage     = 500              // characters of task.Result.Message that are kept; at most 2 KiB
	MaxPollTimeout = 60 * time.Second // a longer PollRequest.WaitSeconds is cut
	MaxHeldTasks   = 64               // entries of PollRequest.HeldTasks
	MaxSession     = 128              // bytes of PollRequest.AgentSession
	MaxWorkloads   = 128              // entries of Heartbeat.Workloads
	NonceBytes     = 16               // bytes of PollRequest.Nonce before base64url

	MaxAgentVersion    = 64        // bytes of an agent's version
	MaxWorkloadName    = 255       // bytes of a workload's name
	MaxWorkloadKind    = 32        // bytes of a workload's kind
	MaxWorkloadWarning = 200       // bytes of a workload's warning
	MaxFault           = 256       // bytes of Heartbeat.Fault
	MaxFloorRaise      = 1 << 20   // how far one poll may raise a counter of its node
	MaxInteger         = 1<<53 - 1 // the greatest integer that every JSON reader keeps

	// HeartbeatInterval is the maximum time between two heartbeats of an agent that
	// reaches the server.
	HeartbeatInterval = 60 * time.Second
	// HealthInterval is the maximum time between two health reports of an agent that reaches the
	// server. Conditions without a report for three intervals are unknown.
	HealthInterval   = 5 * time.Minute
	ResultBackoffMin = 500 * time.Millisecond
	ResultBackoffMax = 30 * time.Second
	PollBackoffMax   = 60 * time.Second
	// LockedPollMax is the maximum time between two polls of an agent whose identity is locked.
	LockedPollMax = 15 * time.Minute
)
