package kubernetes

import (
	"testing"

	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

var cluster kubetest.Shared

func TestMain(m *testing.M) { cluster.Run(m) }
