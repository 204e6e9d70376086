package clusteragent

import (
	"context"
	"flag"
	"io"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

// Main runs the program until ctx ends and returns its exit code.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	return daemon.Main(ctx, program(newConfig()), args, getenv, stdout, stderr)
}

// Reference returns the program's reference page in Markdown.
func Reference() string { return program(newConfig()).Reference() }

func program(c *config) daemon.Program {
	return daemon.Program{
		Name: "gpuaas-cluster-agent",
		About: "gpuaas-cluster-agent runs in a Kubernetes cluster and checks its nodes: Ready, GPUs, disk pressure and Cilium. " +
			"Standing alone, it restarts a node that stays unhealthy through Civo's API. Joined to a control plane by GPUAAS_API_URL, " +
			"it reports the conditions to the admin API, restarts nothing, and deletes the Node objects of machines that are gone. " +
			"By default, it only logs and counts what it would do.",
		Config:   c,
		Detached: true,
		Flags: func(f *flag.FlagSet) {
			f.StringVar(&c.kubeconfig, "kubeconfig", defaultKubeconfig, `kubeconfig file; "" uses the service account of the pod`)
		},
		Start: c.start,
	}
}

func programVersion() string { return version.Version() }

// start connects to the cluster, and starts the informer and the leader election.
func (c *config) start(ctx context.Context, p *daemon.Process) error {
	klog.SetSlogLogger(p.Log)
	client, err := connect(c.kubeconfig)
	if err != nil {
		return err
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	selector, err := poolSelector(c.pools())
	if err != nil {
		return err
	}
	if err := p.Connect(ctx, daemon.Dependency{Name: "kubernetes", Open: func(ctx context.Context) error { return listable(ctx, client) }}); err != nil {
		return err
	}
	factory, nodes := nodeInformer(client, selector)
	synced := nodes.Informer().HasSynced
	lister := nodes.Lister()
	factory.Start(ctx.Done())
	p.OnClose(factory.Shutdown)
	p.Health.Add("kubernetes", func(ctx context.Context) error {
		if !synced() {
			return schema.NewError(schema.KindServiceUnavailable, "the nodes were not listed yet")
		}
		return listable(ctx, client)
	})
	p.Log.Info("watching nodes", slog.Any("pools", c.pools()), slog.Bool("monitor_only", c.monitorOnly()), slog.Bool("joined", c.joined()),
		slog.Any("checkers", checkerNames(list(c.Off))))
	a := newAgent(client, c.namespace(), c.settings(), p.Log, newMetrics(p.Registry, programVersion(), c.ClusterID),
		append(options, withNodeLister(func() ([]*corev1.Node, error) { return lister.List(labels.Everything()) }))...)
	p.Go(ctx, "reconcile", func(ctx context.Context) error {
		factory.WaitForCacheSync(ctx.Done())
		return lead(ctx, client, c.namespace(), p.Log, a.run)
	})
	return nil
}

// listable returns an error unless the program may list nodes.
func listable(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "listing nodes").WithNext("check the kubeconfig and the rights of its user")
	}
	return nil
}

func (c *config) settings() settings {
	return settings{monitorOnly: c.monitorOnly(), checkers: checkers(list(c.Off)), wait: c.rebootWait(), gpuWait: c.gpuRebootWait(),
		maxRebooting: c.MaxRebooting, maxReboots: c.MaxReboots, breakerOff: !c.Breaker}
}

// options returns the control plane of a joined agent, and the executor of another one.
func (c *config) options() ([]option, error) {
	if c.joined() {
		control, err := newControlPlane(c.ControlPlane, c.Token, c.CA)
		return []option{withControlPlane(control)}, err
	}
	e, err := c.executor()
	return []option{withExecutor(e)}, err
}
