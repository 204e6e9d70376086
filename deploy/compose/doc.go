// Package compose holds the test of compose.yaml, which runs gpuaas and the servers that it
// needs on one Docker host.
package compose
