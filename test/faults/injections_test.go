package faults_test

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// apply injects a fault now, or arms it for the point where it takes effect.
func (r *run) apply(ctx context.Context, f fault) error {
	r.logf("   fault: %s", f)
	switch f.kind {
	case kindCrashBefore, kindCrashAfter, kindDBBefore, kindDBAfter:
		r.site.points.arm(f.point, f.kind)
		return nil
	case kindLostRequest, kindLostAnswer, kindTornAnswer, kindDuplicate, kindLateCopy:
		r.site.gate.arm(f.call, f.kind)
		return nil
	case kindTornWrite:
		r.node.disk.tearIn(f.op)
		return nil
	case kindAgentCrash:
		r.node.disk.crashIn(f.op)
		return nil
	}
	r.hits[f.kind]++
	return r.applyNow(ctx, f)
}

// applyNow injects a fault that takes effect immediately.
func (r *run) applyNow(ctx context.Context, f fault) error {
	switch f.kind {
	case kindNetwork, kindSealed, kindClockAhead, kindClockBehind, kindDiskFull, kindReadOnly, kindCAOverlap:
		if f.kind == kindCAOverlap {
			if err := r.auth.replace(true); err != nil {
				return err
			}
		}
		r.lasting[f.kind] = f.steps
		r.applyLasting()
	case kindRestart:
		r.site.restart()
	case kindCAReplaced:
		return r.auth.replace(false)
	case kindAgentRestart:
		r.node.halt()
	case kindTokenExpired:
		return r.w.db.advance(ctx, trust.TokenTTL+time.Minute)
	}
	return nil
}

// applyLasting sets the faults that last for several steps.
func (r *run) applyLasting() {
	r.site.wire.cut(r.lasting[kindNetwork] > 0)
	r.auth.seal(r.lasting[kindSealed] > 0)
	r.node.disk.fail(r.lasting[kindDiskFull] > 0, r.lasting[kindReadOnly] > 0)
	r.node.skew = 0
	if r.lasting[kindClockAhead] > 0 {
		r.node.skew += year
	}
	if r.lasting[kindClockBehind] > 0 {
		r.node.skew -= year
	}
}

// ageLasting shortens lasting faults by one step.
func (r *run) ageLasting() {
	if r.lasting[kindCAOverlap] == 1 {
		r.auth.distrustOld()
	}
	for _, k := range kinds {
		r.lasting[k] = max(0, r.lasting[k]-1)
	}
	r.applyLasting()
}

// endFaults ends every fault.
func (r *run) endFaults() {
	clear(r.lasting)
	r.applyLasting()
	r.site.points.disarm()
	r.site.gate.disarm()
	r.node.disk.repair()
	r.auth.distrustOld()
}

// endRemoved removes the node: its agent stops, and its requests are rejected.
func (r *run) endRemoved(ctx context.Context) error {
	r.logf("== removed")
	if err := r.w.remove(ctx, r.node.id); err != nil {
		return err
	}
	for range 5 {
		if err := r.step(ctx); err != nil || r.failure != "" {
			return err
		}
		if r.node.accepted {
			r.fail("the poll of a removed node was accepted")
		}
	}
	if !r.node.removed {
		r.fail("the agent of a removed node did not stop")
	}
	return nil
}

// endCloned copies the disk to a second machine and runs both: within a renewal
// period both are locked, and only an operator's reissue restores one.
func (r *run) endCloned(ctx context.Context) error {
	r.logf("== cloned")
	r.cloned = true
	root := r.node.disk.root + "-twin"
	conf := layout(r.node.id, root, r.w.caPath)
	conf.EnrollmentToken = r.node.conf.EnrollmentToken
	twin := newMachine(conf, r.site, r.node.log, r.node.disk.clone(root, seeded(r.plan.seed, forClone)))
	twin.r = seeded(r.plan.seed, forClone)
	defer twin.halt()
	out := 0
	for end := r.w.db.clock.Now().Add(trust.CertTTL * 2); out < 6 && r.w.db.clock.Now().Before(end); {
		first, second := r.node, twin
		if r.r.IntN(2) == 0 {
			first, second = twin, r.node
		}
		for _, m := range []*machine{first, second} {
			outcome, _ := m.step(ctx)
			r.logf("%s: %s", map[bool]string{true: "twin", false: "node"}[m == twin], outcome)
		}
		if out++; r.node.accepted || twin.accepted {
			out = 0
		}
		if err := r.w.db.advance(ctx, 90*time.Minute+upTo(r.r, time.Hour)); err != nil {
			return err
		}
	}
	if out < 6 {
		r.fail("a clone still works after two certificate lifetimes")
		return nil
	}
	return r.afterClone(ctx, twin)
}

func (r *run) afterClone(ctx context.Context, twin *machine) error {
	r.logf("== operator reissues to one of the two")
	if err := r.reissue(ctx, trust.PurposeReissue); err != nil {
		return err
	}
	back, err := r.recover(ctx, "the chosen machine recovers")
	if err != nil || r.failure != "" {
		return err
	}
	if !back {
		r.fail("a locked node did not recover after a reissue")
		return nil
	}
	for range 5 {
		outcome, wait := twin.step(ctx)
		r.logf("twin: %s", outcome)
		if twin.accepted {
			r.fail("the clone was accepted after the reissue")
		}
		if err := r.w.db.advance(ctx, min(max(wait, time.Minute), time.Hour)); err != nil {
			return err
		}
	}
	if err := r.step(ctx); err == nil && !r.node.accepted {
		back, err = r.recover(ctx, "the clone does not lock it again")
		if err == nil && !back {
			r.fail("the clone locked the reissued node again")
		}
		return err
	}
	return nil
}
