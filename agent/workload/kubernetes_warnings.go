package workload

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Limits of the requests for warnings. A warning that is not found in time is part of a later
// list.
const (
	warningTime   = 3 * time.Second
	warningCalls  = 20 // in one list
	warningsFresh = 2 * time.Minute
)

// The warnings about pods. A drain evicts such a pod anyway, unless the warning says otherwise.
const (
	warnBare  = "no controller creates the pod again: a drain does not evict it unless forced"
	warnLocal = "local volume: its data stays on this node, and the pod may stay pending until the node is back"
	warnEmpty = "its emptyDir volumes are lost"
)

// podWarnings finds what an operator should consider before a drain. It remembers answers of
// the API server for a while.
type podWarnings struct {
	mu    sync.Mutex
	known map[string]kubeAnswer
}

// kubeAnswer is a warning that the API server caused, "" for none.
type kubeAnswer struct {
	at      time.Time // of the last request, zero before the first one
	warning string
}

// of returns the warnings by the UID of the pod. What the API server does not answer, also
// because the node has no right to ask, causes no warning.
func (w *podWarnings) of(ctx context.Context, api *kubeAPI, pods []kubePod) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, warningTime)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	calls, used := warningCalls, map[string]kubeAnswer{}
	ask := func(key string, request func() (warning string, err error)) string {
		a := w.known[key]
		if calls > 0 && ctx.Err() == nil && time.Since(a.at) > warningsFresh {
			calls--
			a.at = time.Now()
			warning, err := request()
			if status := kubeStatus(err); err == nil || status == http.StatusForbidden || status == http.StatusNotFound {
				a.warning = warning // otherwise the last one stays
			}
		}
		used[key] = a
		return a.warning
	}
	out := map[string]string{}
	for _, p := range pods {
		found := p.warnings()
		for _, v := range p.Spec.Volumes {
			if v.Claim != nil && validKubeName(v.Claim.Name) {
				key := p.Metadata.Namespace + "/" + v.Claim.Name
				found[ask("claim "+key, func() (string, error) { return api.claimWarning(ctx, p.Metadata.Namespace, v.Claim.Name) })] = true
			}
		}
		if p.controller() != "" && !p.stopping() {
			found[ask("pod "+p.Metadata.UID, func() (string, error) { return api.budgetWarning(ctx, p) })] = true
		}
		out[p.Metadata.UID] = joinWarnings(found)
	}
	w.known = used
	return out
}

// warnings returns what the pod itself shows.
func (p kubePod) warnings() map[string]bool {
	found := map[string]bool{}
	found[warnBare] = p.controller() == ""
	for _, v := range p.Spec.Volumes {
		found[warnLocal] = found[warnLocal] || v.HostPath != nil
		found[warnEmpty] = found[warnEmpty] || v.EmptyDir != nil
	}
	return found
}

// joinWarnings returns the warnings that apply, the most important one first.
func joinWarnings(found map[string]bool) string {
	var all []string
	for _, w := range []string{warnBare, warnLocal, warnEmpty} {
		if found[w] {
			all = append(all, w)
		}
		delete(found, w)
	}
	for w := range maps.Keys(found) { // at most the one of the budget
		if w != "" {
			all = append([]string{w}, all...)
		}
	}
	return strings.Join(all, "; ")
}

// claimWarning reports whether a claim's volume is on the node.
func (a *kubeAPI) claimWarning(ctx context.Context, namespace, name string) (string, error) {
	var claim struct {
		Spec struct {
			Volume string `json:"volumeName"`
		} `json:"spec"`
	}
	err := a.call(ctx, http.MethodGet, kubePath(kubeCore, "namespaces", namespace, "persistentvolumeclaims", name), nil, nil, &claim)
	if err != nil || !validKubeName(claim.Spec.Volume) {
		return "", err
	}
	var volume struct {
		Spec struct {
			Local    *struct{} `json:"local"`
			HostPath *struct{} `json:"hostPath"`
		} `json:"spec"`
	}
	err = a.call(ctx, http.MethodGet, kubePath(kubeCore, "persistentvolumes", claim.Spec.Volume), nil, nil, &volume)
	if err == nil && (volume.Spec.Local != nil || volume.Spec.HostPath != nil) {
		return warnLocal, nil
	}
	return "", err
}

// budgetWarning reports whether a disruption budget forbids the pod's eviction now. A node may
// not read budgets, but it may try an eviction that changes nothing.
func (a *kubeAPI) budgetWarning(ctx context.Context, p kubePod) (string, error) {
	err := a.evict(ctx, p, true)
	if budget := kubeBudget(err); budget != "" {
		return "a disruption budget allows no eviction now: " + budget, nil
	}
	return "", err
}
