package faults_test

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// apply brings a fault about, or arms it for the moment its place is reached.
func (r *run) apply(ctx context.Context, f fault) error {
	r.say("   fault: %s", f)
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
	return r.happen(ctx, f)
}

// happen is a fault that is there at once.
func (r *run) happen(ctx context.Context, f fault) error {
	switch f.kind {
	case kindNetwork, kindSealed, kindClockAhead, kindClockBehind, kindDiskFull, kindReadOnly, kindCAOverlap:
		if f.kind == kindCAOverlap {
			if err := r.auth.replace(true); err != nil {
				return err
			}
		}
		r.lasting[f.kind] = f.steps
		r.weather()
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

// weather sets what lasts from how long it still lasts.
func (r *run) weather() {
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

// wear is the end of a step: what lasts lasts one step less.
func (r *run) wear() {
	if r.lasting[kindCAOverlap] == 1 {
		r.auth.distrustOld()
	}
	for _, k := range kinds {
		r.lasting[k] = max(0, r.lasting[k]-1)
	}
	r.weather()
}

// calm ends every fault.
func (r *run) calm() {
	clear(r.lasting)
	r.weather()
	r.site.points.disarm()
	r.site.gate.disarm()
	r.node.disk.repair()
	r.auth.distrustOld()
}

// endRemoved removes the node: its agent stops, and nothing of it is accepted.
func (r *run) endRemoved(ctx context.Context) error {
	r.say("== removed")
	if err := r.w.remove(ctx, r.node.id); err != nil {
		return err
	}
	for range 5 {
		if err := r.step(ctx); err != nil || r.failure != "" {
			return err
		}
		if r.node.accepted {
			r.fail("a removed node's poll was accepted")
		}
	}
	if !r.node.removed {
		r.fail("the agent of a removed node did not stop")
	}
	return nil
}

// endCloned copies the disk to a second machine and runs both: within a renewal
// period both are locked out, and only an operator brings one back.
func (r *run) endCloned(ctx context.Context) error {
	r.say("== cloned")
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
			said, _ := m.step(ctx)
			r.say("%s: %s", map[bool]string{true: "twin", false: "node"}[m == twin], said)
		}
		if out++; r.node.accepted || twin.accepted {
			out = 0
		}
		if err := r.w.db.advance(ctx, 90*time.Minute+upTo(r.r, time.Hour)); err != nil {
			return err
		}
	}
	if out < 6 {
		r.fail("a clone works on after two lives of a certificate")
		return nil
	}
	return r.afterClone(ctx, twin)
}

func (r *run) afterClone(ctx context.Context, twin *machine) error {
	r.say("== operator reissues to one of the two")
	if err := r.reissue(ctx, trust.PurposeReissue); err != nil {
		return err
	}
	back, err := r.settle(ctx, "the chosen one comes back")
	if err != nil || r.failure != "" {
		return err
	}
	if !back {
		r.fail("a locked node was not brought back by a reissue")
		return nil
	}
	for range 5 {
		said, wait := twin.step(ctx)
		r.say("twin: %s", said)
		if twin.accepted {
			r.fail("the clone was accepted after the reissue")
		}
		if err := r.w.db.advance(ctx, min(max(wait, time.Minute), time.Hour)); err != nil {
			return err
		}
	}
	if err := r.step(ctx); err == nil && !r.node.accepted {
		back, err = r.settle(ctx, "the clone did not pull it down again")
		if err == nil && !back {
			r.fail("the clone locked the reissued node again")
		}
		return err
	}
	return nil
}
