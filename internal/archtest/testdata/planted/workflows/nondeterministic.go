package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"
)

// Each function below is one thing that workflowcheck must report.

// ReadsClock reads the machine's clock.
func ReadsClock(workflow.Context) time.Time { // workflowcheck: time.Now
	return time.Now() // want: forbidigo
}

// StartsGoroutine starts one outside the workflow's scheduler.
func StartsGoroutine(_ workflow.Context, done func()) { // workflowcheck: starts goroutine
	go done()
}

// RangesOverMap depends on the map's random order.
func RangesOverMap(_ workflow.Context, m map[string]int, each func(string)) { // workflowcheck: iterates over map
	for name := range m {
		each(name)
	}
}

// Indirect reads the clock in a function it calls.
func Indirect(workflow.Context) bool { // workflowcheck: time.Now
	return clock().IsZero()
}

func clock() time.Time { return time.Now() } // want: forbidigo

// Clean is legal workflow code; workflowcheck must not report it.
func Clean(ctx workflow.Context) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", workflow.Now(ctx))
	return workflow.Sleep(ctx, time.Duration(b.Len()))
}
