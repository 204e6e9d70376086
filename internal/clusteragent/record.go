package clusteragent

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

const (
	// recordName is the name of the program's ConfigMap and of its Lease.
	recordName = "gpuaas-cluster-agent"
	// breakerKey is the key of the breaker's state. No node has this name.
	breakerKey = "_breaker"
	// maxRecord bounds the entries in bytes, below the limit of a ConfigMap.
	maxRecord = 900 << 10
)

// entry is what must survive a restart about one node.
type entry struct {
	UID string `json:"uid"` // of the Node object
	// State is zero while the program only monitors: what it would have done counts for nothing.
	State health.State `json:"state,omitzero"`
	// Report is the last one without the healthy conditions and the details.
	Report health.Report `json:"report,omitzero"`
	// Reboots are the times of the node's restarts within rebootPeriod, and BootBefore is the boot
	// that the last one ended.
	Reboots    []time.Time `json:"reboots,omitempty"`
	BootBefore string      `json:"boot_before,omitempty"`
}

// record keeps the entries of all nodes that are not simply healthy in a ConfigMap with a key for
// each node. An update fails if another process wrote since the last load or save, so that of two
// processes that both act as the leader only one reserves a restart.
type record struct {
	client    kubernetes.Interface
	namespace string
	stored    *corev1.ConfigMap // as last loaded or saved
}

// load reads all entries. Without a ConfigMap there are none. An entry that cannot be decoded is an
// error: guessing could restart a node again.
func (r *record) load(ctx context.Context) (entries map[string]entry, storm recovery.BreakerState, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stored, err := r.client.CoreV1().ConfigMaps(r.namespace).Get(ctx, recordName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		r.stored = nil
		return map[string]entry{}, storm, nil
	}
	if err != nil {
		return nil, storm, err
	}
	entries = map[string]entry{}
	for key, text := range stored.Data {
		var e entry
		if key == breakerKey {
			err = json.Unmarshal([]byte(text), &storm)
		} else if err = json.Unmarshal([]byte(text), &e); err == nil {
			entries[key] = e
		}
		if err != nil {
			return nil, storm, schema.Wrap(schema.KindInvalidRequest, err, "the entry %s in ConfigMap %s/%s", key, r.namespace, recordName).
				WithNext("delete the entry, or the ConfigMap; the program then counts no earlier restart")
		}
	}
	r.stored = stored
	return entries, storm, nil
}

// save writes all entries and the breaker, unless they are stored already. The error of a lost race is a conflict of
// the API server, or that the ConfigMap exists already.
func (r *record) save(ctx context.Context, entries map[string]entry, storm recovery.BreakerState) error {
	data, err := r.encode(entries, storm)
	if err != nil || r.stored == nil && len(data) == 0 || r.stored != nil && maps.Equal(data, r.stored.Data) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName, Namespace: r.namespace}, Data: data}
	api := r.client.CoreV1().ConfigMaps(r.namespace)
	if r.stored == nil {
		next, err = api.Create(ctx, next, metav1.CreateOptions{})
	} else {
		next.ResourceVersion = r.stored.ResourceVersion
		next, err = api.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil {
		r.stored = next
	}
	return err
}

func (r *record) encode(entries map[string]entry, storm recovery.BreakerState) (map[string]string, error) {
	data, size := map[string]string{}, 0
	if storm != (recovery.BreakerState{}) {
		text, err := json.Marshal(storm)
		if err != nil {
			return nil, err
		}
		data[breakerKey] = string(text)
	}
	for node, e := range entries {
		text, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		data[node] = string(text)
		size += len(node) + len(text)
	}
	if size > maxRecord {
		return nil, schema.NewError(schema.KindServiceUnavailable, "the states of %d nodes need %d bytes in ConfigMap %s/%s, more than %d",
			len(data), size, r.namespace, recordName, maxRecord)
	}
	return data, nil
}
