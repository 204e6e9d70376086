package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The bounds of a report of a node, which is untrusted.
const (
	maxNodeReport = 1 << 20
	maxNodeChecks = 50
)

// readNodeReport reads what "gpuaas-node-agent doctor -o json" printed on the node, from a file or,
// for -, from stdin.
func readNodeReport(e *env, path string) (r diagnosis.Report, err error) {
	if path == "" {
		return r, nil
	}
	in := e.stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return r, usagef("gpuaas doctor", "--node-report: %s", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxNodeReport+1))
	if err == nil && len(raw) > maxNodeReport {
		err = fmt.Errorf("longer than %d bytes", maxNodeReport)
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err == nil && (len(r.Checks) == 0 || len(r.Checks) > maxNodeChecks) {
		err = fmt.Errorf("%d checks", len(r.Checks))
	}
	if err != nil {
		return r, usagef("gpuaas doctor", "--node-report: not the output of gpuaas-node-agent doctor -o json: %s", err)
	}
	for i, c := range r.Checks {
		r.Checks[i] = diagnosis.Check{Name: "node: " + clean(c.Name), Asked: clean(c.Asked), Answer: clean(c.Answer), Result: resultOf(c.Result),
			Owner: diagnosis.Owner(clean(string(c.Owner))), Next: clean(c.Next)}
	}
	return r, nil
}

// resultOf is a result that exists: what a node reports otherwise is a fault.
func resultOf(r diagnosis.Result) diagnosis.Result {
	if r == diagnosis.OK || r == diagnosis.Skipped {
		return r
	}
	return diagnosis.Failed
}

// checkState compares the time in a state that an operation must end with its limit, with what the
// list of stuck nodes has about it.
func checkState(n wire.NodeView, list wire.StuckList) diagnosis.Check {
	c := diagnosis.Check{Name: "state", Asked: "whether the node needs attention without a parked operation"}
	for _, s := range list.Nodes {
		if s.NodeID == n.ID && s.Row != stuck.RowSilent { // the heartbeat has a check of its own
			return c.Failed(fmt.Sprintf("%s since %s: %s. Likely cause: %s", s.Stuck.Reason, s.Stuck.Since.UTC().Format(time.RFC3339), clean(s.Stuck.Message), clean(s.Stuck.Cause)),
				ownerOf(s.Stuck.WaitingOn), cmp.Or(s.Stuck.Next, "gpuaas stuck"))
		}
	}
	return c.OK("nothing needs attention")
}

// checkHealth names the faults that the health checkers found last. A fault that needs no repair is none.
func checkHealth(n wire.NodeView) diagnosis.Check {
	c := diagnosis.Check{Name: "health", Asked: "what the health checkers found last"}
	faults := preview.Faults(n)
	observe := 0
	for _, found := range n.Conditions {
		if !found.Stale && !found.Faulty() && found.Status == health.Unhealthy {
			observe++
		}
	}
	switch {
	case n.LastHeartbeatAt == nil || n.State == lifecycle.NodeRemoved:
		return c.Skipped()
	case len(faults) > 0:
		return c.Failed(clean(health.Summary(faults)), diagnosis.Node, cause.RepairNext(n.Host, n.State, held(n)))
	case observe > 0:
		return c.OK(text.Count(observe, "condition") + " to observe: gpuaas node show " + n.Host)
	}
	return c.OK("no fault")
}

func checkVerifierSet(n wire.NodeView) diagnosis.Check {
	c := diagnosis.Check{Name: "verifier set", Asked: "the keys with which the node verifies tasks"}
	answer := fmt.Sprintf("set %d, the newest is %d", n.SetVersion, n.NewestSetVersion)
	switch {
	case n.LastHeartbeatAt == nil:
		return c.Skipped()
	case n.SetLost:
		return c.Failed(answer+"; the database does not have the node's set", diagnosis.ControlPlane, "gpuaas stuck shows the fault verifier-set")
	case n.SetVersion > 0 && n.SetVersion < n.NewestSetVersion:
		return c.Failed(answer, diagnosis.Node, "the agent loads the set with its next poll; if it does not: "+diagnosis.OnNode)
	}
	return c.OK(answer)
}

// lateTask is how old a task that was not dispatched is a fault: a node that polls receives a task
// within a second.
const lateTask = 2 * time.Minute

func checkTasks(tasks []wire.TaskView, now time.Time) diagnosis.Check {
	c := diagnosis.Check{Name: "tasks", Asked: "the open tasks of the node"}
	for _, t := range tasks {
		if t.Status == task.Lost {
			return c.Failed("task "+t.TaskID+" ("+string(t.Type)+") is lost: its outcome is unknown", diagnosis.Operator,
				"inspect the node, then: gpuaas task resume "+t.TaskID+" --reason TEXT")
		}
		if waits := now.Sub(t.CreatedAt); t.Status == task.Pending && waits > lateTask {
			return c.Failed(fmt.Sprintf("task %s (%s) was not dispatched for %s", t.TaskID, t.Type, lifecycle.Span(waits)), diagnosis.Node,
				"the node does not poll, or accepts no tasks: see the checks before")
		}
	}
	if len(tasks) == 0 {
		return c.OK("none")
	}
	return c.OK(fmt.Sprintf("%d open, the newest %s is %s", len(tasks), tasks[0].Type, tasks[0].Status))
}

// checkCause is the probable cause of a node that does not work. It is no fault of its own.
func checkCause(ctx context.Context, e *env, n wire.NodeView) (diagnosis.Check, *cause.Report) {
	c := diagnosis.Check{Name: "probable cause", Asked: "what explains the faults above"}
	r, err := decode[cause.Report](e.api().GetNodeCause(ctx, n.ID, &adminclient.GetNodeCauseParams{}))
	top := r.Top()
	switch {
	case schema.KindOf(err) == schema.KindNotFound, err == nil && top == nil: // an older API has no route
		return c.Skipped(), nil
	case err != nil:
		return c.OK("not read: " + clean(err.Error())), nil
	}
	return c.OK(causeAnswer(*top)), &r
}

// causeAnswer describes a probable cause. Its next step is left out if it is this command, whose other checks have one.
func causeAnswer(of cause.Candidate) string {
	answer := fmt.Sprintf("%s (confidence %.2f); owner: %s", clean(of.Summary), of.Confidence, of.Owner)
	if strings.HasPrefix(of.Next, "gpuaas doctor ") {
		return answer
	}
	return answer + "; next: " + clean(of.Next)
}

// controlPlaneEvidence are the commands that collect what this command cannot read: the logs of the
// processes and the probes of the node API, for the machine that runs them. Nothing in it is
// secret.
func controlPlaneEvidence(n wire.NodeView) string {
	return `# Logs of the control plane of the last 30 minutes. systemd:
journalctl -u gpuaas-api --since -30min --no-pager
journalctl -u gpuaas-worker --since -30min --no-pager
# Kubernetes, with the names of the Helm chart (with k3s: /usr/local/bin/k3s kubectl):
kubectl -n gpuaas logs deploy/gpuaas-node-api --since=30m
kubectl -n gpuaas logs deploy/gpuaas-admin-api --since=30m
kubectl -n gpuaas logs deploy/gpuaas-worker --since=30m
# A proxy in front of the node API: its log, and the CA that it uses for client certificates, if it ends TLS.
kubectl -n kube-system logs deploy/traefik --since=30m
openssl x509 -in CLIENT-CA.pem -noout -subject -issuer -dates -fingerprint -sha256
# The installation:
gpuaas admin check
# On the node ` + n.Host + `, as root: probes with and without the certificate, and the agent's evidence:
/opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor --bundle node-evidence.tar.gz
/opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor -o json   # for gpuaas doctor ` + n.Host + ` --node-report -
`
}
