package clusteragent

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/test/harness"
)

const namespace = "kube-system"

// rig is an agent on a fake cluster with a fake clock.
type rig struct {
	*testing.T
	client   *fake.Clientset
	at       time.Time
	settings settings
	executor *executor
	reg      *prometheus.Registry
	log      *harness.Buffer
	agent    *agent
	options  []option
	nodes    []*corev1.Node // nil after each change
}

// executor counts restarts. before, if set, runs in the call, and its error is the result.
type executor struct {
	reboots []string
	before  func(node string) error
}

func (e *executor) Reboot(_ context.Context, node string) error {
	e.reboots = append(e.reboots, node)
	if e.before != nil {
		return e.before(node)
	}
	return nil
}

// newRig returns a rig with one node of each name.
func newRig(t *testing.T, nodes ...string) *rig {
	t.Helper()
	r := &rig{T: t, client: fake.NewClientset(), at: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), executor: &executor{},
		settings: settings{checkers: checkers(nil), wait: defaultRebootWait, gpuWait: defaultGPURebootWait, maxRebooting: 10, maxReboots: 2}}
	r.client.PrependReactor("*", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if verb := action.GetVerb(); verb != "get" && verb != "list" {
			r.nodes = nil
		}
		return false, nil, nil
	})
	for _, name := range nodes {
		r.create(name)
	}
	return r
}

func (r *rig) create(name string) {
	r.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-" + strconv.FormatInt(r.at.Unix(), 10)), CreationTimestamp: metav1.NewTime(r.at)}}
	n.Status.NodeInfo.BootID = "boot-1"
	_, err := r.client.CoreV1().Nodes().Create(r.Context(), n, metav1.CreateOptions{})
	require.NoError(r, err)
	r.ready(name, corev1.ConditionTrue)
}

// change updates a node.
func (r *rig) change(name string, f func(n *corev1.Node)) {
	r.Helper()
	api := r.client.CoreV1().Nodes()
	n, err := api.Get(r.Context(), name, metav1.GetOptions{})
	require.NoError(r, err)
	f(n)
	_, err = api.Update(r.Context(), n, metav1.UpdateOptions{})
	require.NoError(r, err)
}

// condition sets a condition of a node.
func (r *rig) condition(name string, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	r.Helper()
	r.change(name, func(n *corev1.Node) {
		c := corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(r.at)}
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == kind {
				n.Status.Conditions[i] = c
				return
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	})
}

func (r *rig) ready(name string, status corev1.ConditionStatus) {
	r.Helper()
	r.condition(name, corev1.NodeReady, status, map[corev1.ConditionStatus]string{"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}[status])
}

// gpus sets the GPUs that a node should have and those that are allocatable.
func (r *rig) gpus(name, label string, allocatable int64) {
	r.Helper()
	r.change(name, func(n *corev1.Node) {
		n.Labels = map[string]string{health.LabelGPUCount: label}
		n.Status.Allocatable = corev1.ResourceList{gpuResource: *resource.NewQuantity(allocatable, resource.DecimalSI)}
	})
}

// booted gives a node another boot.
func (r *rig) booted(name, boot string) {
	r.Helper()
	r.change(name, func(n *corev1.Node) { n.Status.NodeInfo.BootID = boot })
}

// start starts the agent, or another one after the end of the last.
func (r *rig) start() {
	r.Helper()
	r.reg, r.log = prometheus.NewRegistry(), &harness.Buffer{}
	log := slog.New(slog.NewJSONHandler(r.log, nil))
	list := func() ([]*corev1.Node, error) {
		if r.nodes != nil {
			return r.nodes, nil // the double's lists are slow
		}
		nodes, err := r.client.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{})
		for i := range nodes.Items {
			r.nodes = append(r.nodes, &nodes.Items[i])
		}
		return r.nodes, err
	}
	r.agent = newAgent(r.client, namespace, r.settings, log, newMetrics(r.reg, "test", "cluster-1"), append([]option{
		withExecutor(r.executor), withNowFunc(func() time.Time { return r.at }), withNodeLister(list)}, r.options...)...)
}

// pass runs the agent for a time, with a round every 10 s.
func (r *rig) pass(d time.Duration) {
	r.Helper()
	if r.agent == nil {
		r.start()
	}
	for end := r.at.Add(d); ; r.at = r.at.Add(reconcileEvery) {
		r.agent.reconcile(r.Context())
		if !r.at.Add(reconcileEvery).Before(end) {
			r.at = end
			return
		}
	}
}

// phase checks the phase of a node, and that its gauge says so.
func (r *rig) phase(name string, want health.Phase) {
	r.Helper()
	require.Equal(r, want, r.agent.states.State(name).Phase())
	for _, p := range health.Phases() {
		value := 0.0
		if p == want {
			value = 1
		}
		require.InDelta(r, value, testutil.ToFloat64(r.agent.metrics.phase.WithLabelValues(name, p.String())), 0, p)
	}
}

// actions returns the counted actions of a node.
func (r *rig) actions(name, action, mode string) int {
	return int(testutil.ToFloat64(r.agent.metrics.actions.WithLabelValues(name, action, mode)))
}
