// Package planted is an adapter that imports and calls what it must not.
package planted

import (
	"fmt"
	"log"       // want: depguard
	"math/rand" // want: depguard
	"os"
	"time"

	"github.com/stretchr/testify/require" // want: depguard
	"k8s.io/client-go/rest"               // want: depguard

	"github.com/gpuaas/gpuaas/workflows" // want: depguard
)

// Do calls what it must not.
func Do(t require.TestingT) {
	require.NotNil(t, workflows.Clean)
	require.NotNil(t, rest.InClusterConfig)
	log.Println(rand.Int())
	fmt.Println("hello")    // want: forbidigo
	time.Sleep(time.Second) // want: forbidigo
	os.Exit(1)              // want: forbidigo
}

func Undocumented() {} // want: revive
