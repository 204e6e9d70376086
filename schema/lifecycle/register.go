package lifecycle

// The transitions that have no workflow.
const (
	ActionRegister      Action = "register"
	ActionHeartbeatLost Action = "heartbeat-lost"
	ActionHeartbeatBack Action = "heartbeat-back"
)

func register(Options) Plan {
	return Plan{Action: ActionRegister, To: NodeRegistered,
		Does: "Adds the node to the inventory and checks its SKU."}
}

func heartbeatLost(Options) Plan {
	return Plan{Action: ActionHeartbeatLost, From: []NodeState{NodeActive}, To: NodeOffline,
		Does: "A worker records that heartbeats stopped."}
}

func heartbeatBack(Options) Plan {
	return Plan{Action: ActionHeartbeatBack, From: []NodeState{NodeOffline}, To: NodeActive,
		Does: "The API records that heartbeats returned."}
}
