// Command gpuaas-node-agent imports what it must not.
package main

import (
	"fmt"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/worker" // want: depguard
)

func main() { fmt.Println(agent.ID, worker.ID) }
