// Package clusteragent is the program gpuaas-cluster-agent, which runs in a Kubernetes cluster: it
// watches the Node objects and checks them with the checkers of package health.
//
// Standing alone, it restarts nodes that stay unhealthy, through an Executor. Joined to a control
// plane, it reports what it found to the admin API and restarts nothing: the control plane decides.
// No other package imports the Kubernetes client. Start at Main, then at agent.reconcile.
package clusteragent
