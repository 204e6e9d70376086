package faults_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// kind is a kind of fault.
type kind string

// The kinds of faults.
const (
	kindCrashBefore  kind = "API crashes before a commit"
	kindCrashAfter   kind = "API crashes after a commit"
	kindDBBefore     kind = "database fails before a commit"
	kindDBAfter      kind = "database fails after a commit"
	kindLostRequest  kind = "request lost"
	kindLostAnswer   kind = "answer lost"
	kindTornAnswer   kind = "answer torn"
	kindDuplicate    kind = "request duplicated"
	kindLateCopy     kind = "request repeated after its answer"
	kindNetwork      kind = "network away"
	kindRestart      kind = "API restarted"
	kindSealed       kind = "Vault sealed"
	kindCAReplaced   kind = "CA replaced at once"
	kindCAOverlap    kind = "CA replaced with overlap"
	kindClockAhead   kind = "node's clock a year ahead"
	kindClockBehind  kind = "node's clock a year behind"
	kindDiskFull     kind = "node's disk full"
	kindReadOnly     kind = "node's disk read-only"
	kindTornWrite    kind = "node's write torn"
	kindAgentCrash   kind = "agent crashes at a disk operation"
	kindAgentRestart kind = "agent restarted"
	kindTokenExpired kind = "token expired"
	kindDark         kind = "dark past expiry"
)

// kinds is ordered as in the table and for the random choice.
var kinds = []kind{kindCrashBefore, kindCrashAfter, kindDBBefore, kindDBAfter, kindLostRequest, kindLostAnswer,
	kindTornAnswer, kindDuplicate, kindLateCopy, kindNetwork, kindRestart, kindSealed, kindCAReplaced, kindCAOverlap,
	kindClockAhead, kindClockBehind, kindDiskFull, kindReadOnly, kindTornWrite, kindAgentCrash, kindAgentRestart,
	kindTokenExpired, kindDark}

// allPoints and allCalls are the places for faults at commits and in transit.
var (
	allPoints = []point{atClaim, atClaimRenewal, atClaimRecover, atSign, atPend, atPromote, atPolled}
	allCalls  = []string{"enroll", "renew", "recover", "wait"}
)

const year = 365 * 24 * time.Hour

// fault is one fault of a plan.
type fault struct {
	kind  kind
	point point
	call  string
	// op is the number of disk operations until a crash or a torn write.
	op int
	// steps is the duration of a lasting fault.
	steps int
}

func (f fault) String() string {
	switch f.kind {
	case kindCrashBefore, kindCrashAfter, kindDBBefore, kindDBAfter:
		return fmt.Sprintf("%s (%s)", f.kind, f.point)
	case kindLostRequest, kindLostAnswer, kindTornAnswer, kindDuplicate, kindLateCopy:
		return fmt.Sprintf("%s (%s)", f.kind, f.call)
	case kindTornWrite, kindAgentCrash:
		return fmt.Sprintf("%s (%d)", f.kind, f.op)
	}
	return fmt.Sprintf("%s (%d steps)", f.kind, f.steps)
}

// stage is a stage of a lifecycle.
type stage string

// The stages.
const (
	stageEnroll    stage = "enroll"
	stageRenew     stage = "time to renew"
	stageDark      stage = "dark past expiry"
	stageIdle      stage = "a quiet time"
	stageReissue   stage = "operator reissues"
	stageLostState stage = "state folder lost, operator reissues"
	stageLongDark  stage = "dark past the recovery token, operator reissues"
)

// ending is the end of a lifecycle.
type ending string

// The endings.
const (
	endsAlive   ending = "alive"
	endsRemoved ending = "removed"
	endsCloned  ending = "cloned"
)

// plannedStage is one stage with the faults of its steps.
type plannedStage struct {
	stage stage
	by    time.Duration // how far the clock moves before its first step
	steps [][]fault     // by step
}

// plan is a lifecycle with its faults. It derives from the seed only.
type plan struct {
	seed   uint64
	stages []plannedStage
	ending ending
}

func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0x67707561))
	p := plan{seed: seed, ending: endsAlive}
	p.stages = append(p.stages, newPlannedStage(r, stageEnroll, 2+r.IntN(6)))
	for range 2 + r.IntN(4) {
		p.stages = append(p.stages, newPlannedStage(r, randomStage(r), 1+r.IntN(5)))
	}
	switch n := r.IntN(20); {
	case n < 2:
		p.ending = endsRemoved
	case n < 5:
		p.ending = endsCloned
	}
	return p
}

func randomStage(r *rand.Rand) stage {
	switch n := r.IntN(20); {
	case n < 8:
		return stageRenew
	case n < 14:
		return stageDark
	case n < 16:
		return stageIdle
	case n < 18:
		return stageReissue
	case n < 19:
		return stageLostState
	}
	return stageLongDark
}

func newPlannedStage(r *rand.Rand, c stage, steps int) plannedStage {
	p := plannedStage{stage: c}
	switch c {
	case stageRenew:
		p.by = trust.CertTTL*45/100 + upTo(r, trust.CertTTL/4)
	case stageDark:
		p.by = trust.CertTTL + upTo(r, 30*24*time.Hour)
	case stageIdle:
		p.by = upTo(r, 6*time.Hour)
	case stageLongDark:
		p.by = trust.RecoveryTokenTTL + upTo(r, 30*24*time.Hour)
	}
	for range steps {
		var fs []fault
		for r.IntN(10) < 5 && len(fs) < 3 {
			fs = append(fs, newFault(r))
		}
		p.steps = append(p.steps, fs)
	}
	return p
}

func newFault(r *rand.Rand) fault {
	// Always drawn, so that the kind does not affect later random values.
	return fault{kind: kinds[r.IntN(len(kinds)-1)], point: allPoints[r.IntN(len(allPoints))],
		call: allCalls[r.IntN(len(allCalls))], op: 1 + r.IntN(14), steps: 1 + r.IntN(3)}
}

// upTo returns a random duration below most.
func upTo(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}
