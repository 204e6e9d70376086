package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// recoverySteps is how many steps an agent has to recover once the faults have ended.
const recoverySteps = 25

// purposes of a run's generators.
const (
	forDisk = iota + 1
	forClone
	forLife
	forCA
	forAgent
)

// run is one lifecycle with its faults.
type run struct {
	plan plan
	w    *world
	auth *authority
	site *site
	node *machine
	r    *rand.Rand
	log  bytes.Buffer

	lasting map[kind]int // steps left
	trace   []string
	hits    map[kind]int
	steps   int
	cloned  bool
	locked  bool // node_locked was observed
	byHand  int  // expected reissues by an operator
	// bare is true until an identity of the node was accepted.
	bare     bool
	accepted time.Time
	failure  string
}

func (w *world) newRun(p plan) (*run, error) {
	r := &run{plan: p, w: w, r: seeded(p.seed, forLife), lasting: map[kind]int{}, hits: map[kind]int{}, bare: true, accepted: epoch}
	var err error
	if r.auth, err = newAuthority(w.db.clock, seeded(p.seed, forCA)); err != nil {
		return nil, err
	}
	r.site = newSite(w.nodeStore(), r.auth, w.db.clock, w.cert, &r.log)
	return r, nil
}

// do runs the plan. Failures of the node are in failure; an error means that the test
// itself failed.
func (r *run) do(ctx context.Context) error {
	r.site.start()
	defer r.site.stop()
	if err := r.w.db.set(ctx, epoch); err != nil {
		return err
	}
	id, err := r.w.register(ctx, r.plan.seed)
	if err != nil {
		return err
	}
	root := filepath.Join(r.w.dir, id)
	agentLog := slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	r.node = newMachine(layout(id, root, r.w.caPath), r.site, agentLog, newDisk(root, seeded(r.plan.seed, forDisk)))
	r.node.r = seeded(r.plan.seed, forAgent)
	defer r.node.halt()
	if err := r.reissue(ctx, trust.PurposeEnroll); err != nil {
		return err
	}
	for _, p := range r.plan.stages {
		if err := r.runStage(ctx, p); err != nil || r.failure != "" {
			return err
		}
	}
	if err := r.end(ctx); err != nil || r.failure != "" {
		return err
	}
	if err := r.w.verifyAudit(ctx, id); err != nil {
		r.fail("the audit chain does not verify: %v", err)
	}
	return nil
}

func (r *run) fail(format string, args ...any) {
	if r.failure == "" {
		r.failure = fmt.Sprintf(format, args...)
		r.logf("FAILED: %s", r.failure)
	}
}

func (r *run) logf(format string, args ...any) {
	line := fmt.Sprintf("%10s  ", r.w.db.clock.Now().Sub(epoch).Round(time.Second)) + fmt.Sprintf(format, args...)
	r.trace = append(r.trace, line)
	r.log.WriteString("--- " + line + "\n")
}

// runStage runs one stage: its external events, then steps with their faults.
func (r *run) runStage(ctx context.Context, p plannedStage) error {
	r.logf("== %s", p.stage)
	if err := r.w.db.advance(ctx, p.by); err != nil {
		return err
	}
	switch p.stage {
	case stageDark, stageLongDark:
		r.hits[kindDark]++
	}
	switch p.stage {
	case stageReissue, stageLongDark:
		if err := r.reissue(ctx, trust.PurposeReissue); err != nil {
			return err
		}
	case stageLostState:
		r.node.halt()
		r.bare = true
		r.node.disk = newDisk(r.node.disk.root, seeded(r.plan.seed, forDisk))
		if err := r.reissue(ctx, trust.PurposeReissue); err != nil {
			return err
		}
	}
	for _, faults := range p.steps {
		for _, f := range faults {
			if err := r.apply(ctx, f); err != nil {
				return err
			}
		}
		if err := r.step(ctx); err != nil || r.failure != "" {
			return err
		}
	}
	return nil
}

// reissue issues a new token as an operator and applies it like the restart command:
// it changes the env file, renames the old key pair and restarts the agent.
func (r *run) reissue(ctx context.Context, purpose trust.TokenPurpose) error {
	token, err := r.w.issue(ctx, r.node.id, purpose)
	if err != nil {
		return fmt.Errorf("issuing a token (%s): %w", purpose, err)
	}
	r.node.halt()
	r.node.setToken(token)
	return nil
}

// step runs one step of the agent, shortens lasting faults and restarts a dead API.
func (r *run) step(ctx context.Context) error {
	r.steps++
	outcome, wait := r.node.step(ctx)
	r.logf("%s (wait %s)", outcome, wait.Round(time.Second))
	if n := r.site.gate.deliverLate(); n > 0 {
		r.logf("     %d late copies arrive", n)
	}
	for _, k := range append(append(r.site.points.happened(), r.site.gate.happened()...), r.node.disk.happened()...) {
		r.logf("     hit: %s", k)
		r.hits[k]++
	}
	if r.site.gate.isDead() {
		r.site.restart()
	}
	r.locked = r.locked || strings.Contains(outcome, schema.ReasonNodeLocked)
	if r.check(); r.node.accepted {
		r.bare, r.accepted = false, r.w.db.clock.Now()
	}
	if err := r.promoteNode(ctx); err != nil {
		return err
	}
	r.ageLasting()
	return r.w.db.advance(ctx, min(max(wait, 5*time.Second), time.Hour))
}

// check verifies the invariants after every step.
func (r *run) check() {
	if r.locked && !r.cloned {
		r.fail("the node was locked without a clone")
	}
	if wrong := r.site.points.broken(); wrong != "" {
		r.fail("%s", wrong)
	}
	if r.node.removed && r.plan.ending != endsRemoved {
		r.fail("the agent considers the node removed")
	}
}

// promoteNode completes the enrollment's operation at the first accepted poll, like
// the workflow.
func (r *run) promoteNode(ctx context.Context) error {
	if !r.node.accepted || r.plan.ending == endsRemoved && r.node.removed {
		return nil
	}
	return r.w.finish(ctx, r.node.id, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive})
}

// recover ends all faults and lets the agent recover without help.
func (r *run) recover(ctx context.Context, what string) (bool, error) {
	r.logf("-- faults end: %s", what)
	r.endFaults()
	for range recoverySteps {
		if err := r.step(ctx); err != nil || r.failure != "" {
			return false, err
		}
		if r.node.accepted {
			return true, nil
		}
	}
	return false, nil
}

// end lets the node recover, then checks that it can renew and recover from another
// disconnection.
func (r *run) end(ctx context.Context) error {
	back, err := r.recover(ctx, "it recovers")
	if err != nil || r.failure != "" {
		return err
	}
	if !back {
		if !r.needsOperator(ctx) {
			r.fail("stranded: not recovered after %d steps", recoverySteps)
			return nil
		}
		r.byHand++
		r.logf("== operator reissues: the token expired unused")
		if err := r.reissue(ctx, trust.PurposeReissue); err != nil {
			return err
		}
		if back, err = r.recover(ctx, "after an operator's reissue"); err != nil || r.failure != "" {
			return err
		}
		if !back {
			r.fail("stranded after a reissue")
			return nil
		}
	}
	for _, probe := range []struct {
		what string
		by   time.Duration
	}{{"it renews", trust.CertTTL * 65 / 100}, {"it recovers", trust.CertTTL + 24*time.Hour}} {
		if err := r.w.db.advance(ctx, probe.by); err != nil {
			return err
		}
		if back, err = r.recover(ctx, probe.what); err != nil || r.failure != "" {
			return err
		}
		if !back {
			r.fail("stranded: %s failed", probe.what)
			return nil
		}
	}
	switch r.plan.ending {
	case endsRemoved:
		return r.endRemoved(ctx)
	case endsCloned:
		return r.endCloned(ctx)
	}
	return nil
}

// needsOperator reports whether the node needs an operator by design: its token has
// expired unclaimed, and it has no identity with a valid recovery token.
func (r *run) needsOperator(ctx context.Context) bool {
	now := r.w.db.clock.Now()
	var live, claimed, used bool
	err := r.w.db.raw.QueryRow(ctx, `SELECT coalesce(bool_or(expires_at > $2), false), coalesce(bool_or(state = 'claimed'), false),
		EXISTS (SELECT 1 FROM node_certificates c JOIN nodes n USING (node_id)
			WHERE node_id = $1 AND c.incarnation = n.incarnation AND promoted_at IS NOT NULL)
		FROM enrollment_tokens WHERE node_id = $1 AND purpose IN ('enroll', 'reissue') AND state IN ('issued', 'claimed')`,
		r.node.id, now).Scan(&live, &claimed, &used)
	if err != nil {
		r.fail("reading the state of the node: %v", err)
	}
	return !live && !claimed && (r.bare || !used || now.Sub(r.accepted) > trust.RecoveryTokenTTL-trust.CertTTL)
}
