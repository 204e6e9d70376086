package clusteragent

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

// poolLabel is the label with the ID of a node's pool.
const poolLabel = "kubernetes.civo.com/civo-node-pool"

// requestTimeout bounds each request to the API server, apart from watches.
const requestTimeout = 10 * time.Second

// connect returns a client for the cluster of the kubeconfig, or of the pod that the program runs in
// if the path is empty. The error names the path.
func connect(kubeconfig string) (kubernetes.Interface, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "gpuaas-cluster-agent/" + version.Version()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "kubeconfig %q", kubeconfig)
	}
	return client, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, schema.Wrap(schema.KindInvalidRequest, err, "the configuration of the pod's cluster").
				WithNext("run the program in a pod, or set --kubeconfig to a file")
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "kubeconfig %q", kubeconfig).
			WithNext(`set --kubeconfig to a readable kubeconfig, or to "" in a pod`)
	}
	return config, nil
}

// poolSelector selects the nodes of the pools; nil selects all nodes. One ID must match exactly, of
// several any.
func poolSelector(pools []string) (labels.Selector, error) {
	var requirement *labels.Requirement
	var err error
	switch len(pools) {
	case 0:
		return nil, nil
	case 1:
		requirement, err = labels.NewRequirement(poolLabel, selection.Equals, pools)
	default:
		requirement, err = labels.NewRequirement(poolLabel, selection.In, pools)
	}
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "CIVO_NODE_POOL_IDS %s", strings.Join(pools, ","))
	}
	return labels.NewSelector().Add(*requirement), nil
}

// nodeInformer returns an informer of the selected nodes. Nodes lose their managed fields, which
// nothing reads, so that a large cluster needs less memory.
func nodeInformer(client kubernetes.Interface, selector labels.Selector) (informers.SharedInformerFactory, coreinformers.NodeInformer) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		if selector != nil { // a nil selector would be formatted as "<nil>"
			o.LabelSelector = selector.String()
		}
	}), informers.WithTransform(func(o any) (any, error) {
		if m, ok := o.(metav1.Object); ok {
			m.SetManagedFields(nil)
		}
		return o, nil
	}))
	return factory, factory.Core().V1().Nodes()
}
