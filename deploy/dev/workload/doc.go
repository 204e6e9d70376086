// Package workload is the workload driver of development and tests: a supervisor
// of plain processes. Nodes in production use the agent's systemd or Docker driver.
// gpuaas-dev-agent is the node agent with this driver.
//
// Start reading at driver.go (state and signals), then supervise.go (which
// processes should run) and process.go (how one is started).
package workload
