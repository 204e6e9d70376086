package adminapi

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuaas/gpuaas/schema"
)

// The rate of a subject's health reports at this process, per second, and how many it may send at
// once. A cluster agent sends a report of a node every 5 minutes and after each change: the rate is
// three times that of 10,000 nodes.
const (
	reportRate  = 100
	reportBurst = 5000
	// maxReporters bounds the memory of the limits. Subjects are those of the tokens.
	maxReporters = 1024
)

// reportLimits limits the health reports of each subject. It is safe for concurrent use.
type reportLimits struct {
	mu       sync.Mutex
	subjects map[string]*rate.Limiter
}

// take counts a report of the subject, and rejects it with Retry-After if the subject sends too many.
func (l *reportLimits) take(w http.ResponseWriter, subject string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket := l.subjects[subject]
	if bucket == nil {
		if len(l.subjects) >= maxReporters {
			clear(l.subjects)
		}
		bucket = rate.NewLimiter(reportRate, reportBurst)
		l.subjects[subject] = bucket
	}
	if bucket.AllowN(now, 1) {
		return nil
	}
	const wait = 1 // a second gives reportRate more
	w.Header().Set("Retry-After", strconv.Itoa(wait))
	return schema.NewError(schema.KindRateLimited, "%s sends more than %d health reports a second; retry in %d s", subject, reportRate, wait).
		WithReason("over_reports")
}
