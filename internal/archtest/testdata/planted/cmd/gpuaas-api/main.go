// Command gpuaas-api imports what it must not.
package main

import (
	"os"

	"github.com/gpuaas/gpuaas/cli" // want: depguard
)

func main() {
	if cli.ID == "" {
		os.Exit(1)
	}
}
