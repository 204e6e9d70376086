// gpuaas-test-kubernetes is kube-apiserver, kube-controller-manager, kube-scheduler and
// the kubelet in one program, for the tests of the Kubernetes driver. The first
// argument selects the component:
//
//	gpuaas-test-kubernetes kube-apiserver --etcd-servers=…
//
// The program is a module of its own, because no other program links Kubernetes.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	command, err := component(os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// The kubelet reads os.Args, not the arguments of its command.
	os.Args = os.Args[1:]
	os.Exit(cli.Run(command))
}

// component returns the command of the component that the first argument names.
func component(args []string) (*cobra.Command, error) {
	name := ""
	if len(args) > 1 {
		name = args[1]
	}
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand(), nil
	case "kube-controller-manager":
		return controllers.NewControllerManagerCommand(), nil
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand(), nil
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background()), nil
	}
	return nil, fmt.Errorf("unknown component %q; use kube-apiserver, kube-controller-manager, kube-scheduler, or kubelet as the first argument", name)
}
