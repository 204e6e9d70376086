package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// executions count what the nodes executed.
type executions struct {
	tasks, succeeded int
	// most is the largest number of executions of one task.
	most int
	// node counts the tasks that each node executed, by host name.
	node map[string]int
}

// add adds a task that its node executed n times.
func (e *executions) add(t storedTask, n int) {
	if e.node == nil {
		e.node = map[string]int{}
	}
	e.tasks++
	if t.Status == "succeeded" {
		e.succeeded++
	}
	e.node[t.Host] += n
	e.most = max(e.most, n)
}

// report writes the figures of the run into the test's log.
func (w *world) report() {
	w.t.Helper()
	var out strings.Builder
	kinds := map[string]int{}
	for _, o := range w.people.started {
		kinds[fmt.Sprintf("%s %s", o.action, o.status)]++
	}
	fmt.Fprintf(&out, "%d operations were accepted, and each ended once as requested: %s\n", len(w.people.started), counts(kinds))
	for i, s := range w.switches {
		actions, parked := map[string]int{}, 0
		for _, o := range s.inFlight {
			actions[string(o.Action)]++
			if o.Status == "parked" {
				parked++
			}
		}
		fmt.Fprintf(&out, "switch %d to %s took %s; in flight: %d at its beginning, %d at the promotion (%d parked; %s), %d of these at its end; %d runs were continued by the other version\n",
			i+1, s.to, s.took.Round(time.Second), s.first, len(s.inFlight), parked, counts(actions), s.last, s.crossed)
	}
	perNode := slices.Sorted(maps.Values(w.executed.node))
	fmt.Fprintf(&out, "%d tasks, of which %d succeeded: each was executed at most %d time; %d to %d tasks per node, median %d, on %d nodes\n",
		w.executed.tasks, w.executed.succeeded, w.executed.most, perNode[0], perNode[len(perNode)-1], perNode[len(perNode)/2], len(perNode))
	w.t.Log("summary\n" + out.String())
}

// counts lists numbers by name.
func counts(of map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%d %s", of[name], name))
	}
	return strings.Join(parts, ", ")
}
