package health

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// answerGrace is how long after its deadline a source may still return.
const answerGrace = 2 * time.Second

// reading is what a source found: it adds it to a sample.
type reading func(*host.Sample)

// source reads one input of a sample. Its call may hang, for example on a program that the kernel does
// not let die: then the input is missing until the call returns, and no other call begins.
type source struct {
	input   host.Input
	timeout time.Duration
	// read returns nil if the host does not have the input.
	read func(ctx context.Context) (reading, error)

	begun  time.Time
	answer chan answer // of the call in progress; nil without one
}

type answer struct {
	reading reading
	err     error
}

// begin starts a call unless one is in progress.
func (s *source) begin(ctx context.Context, now time.Time) {
	if s.answer != nil {
		select {
		case <-s.answer: // too late to be used
		default:
			return
		}
	}
	done := make(chan answer, 1)
	s.answer, s.begun = done, now
	go func() {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		r, err := s.read(ctx)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("no answer within %s", s.timeout)
		}
		done <- answer{r, err}
	}()
}

// end waits for the call, not longer than left, and adds its result to the sample.
func (s *source) end(sample *host.Sample, left time.Duration) {
	deadline := time.NewTimer(max(0, left))
	defer deadline.Stop()
	select {
	case a := <-s.answer:
		s.answered(sample, a)
		return
	default: // an answer counts also if the wait for another source took longer than left
	}
	select {
	case a := <-s.answer:
		s.answered(sample, a)
	case <-deadline.C:
		s.add(sample, answer{err: fmt.Errorf("no answer since %s", text.FormatTime(s.begun))})
	}
}

func (s *source) answered(sample *host.Sample, a answer) {
	s.answer = nil
	s.add(sample, a)
}

func (s *source) add(sample *host.Sample, a answer) {
	if a.err != nil {
		sample.Missing[s.input] = text.Truncate(a.err.Error())
	} else if a.reading != nil {
		a.reading(sample)
	}
}
