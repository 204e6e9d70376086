package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one comparison of a run.
type figure struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Ours and Other are from the same run; Ratio is Ours / Other. If the goal is a
	// number, Other is 0 and Ratio is Ours.
	Ours  float64 `json:"ours"`
	Other float64 `json:"other,omitempty"`
	Ratio float64 `json:"ratio"`
	// Goal is the maximum of Ratio, or with AtLeast the minimum; 0 means none.
	Goal    float64 `json:"goal,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
	Met     bool    `json:"met"`
}

// report is the result file of a benchmark.
type report struct {
	Bench   string             `json:"bench"`
	At      time.Time          `json:"at"`
	Took    string             `json:"took"`
	Size    int                `json:"size"`
	Machine map[string]string  `json:"machine"`
	Load    [2]string          `json:"load_average"` // before and after
	Figures []figure           `json:"figures"`
	Details map[string]float64 `json:"details"`
	notes   []string
}

func newReport(name string, size int) *report {
	return &report{Bench: name, At: time.Now().UTC(), Size: size, Details: map[string]float64{},
		Load: [2]string{loadAverage()}, Machine: machine()}
}

// most adds a figure whose ratio must be at most goal.
func (r *report) most(name, unit string, ours, other, goal float64) {
	r.add(figure{Name: name, Unit: unit, Ours: ours, Other: other, Goal: goal})
}

// least adds a figure whose ratio must be at least goal.
func (r *report) least(name, unit string, ours, other, goal float64) {
	r.add(figure{Name: name, Unit: unit, Ours: ours, Other: other, Goal: goal, AtLeast: true})
}

// number adds a figure that is compared with a number.
func (r *report) number(name, unit string, ours, goal float64) {
	r.add(figure{Name: name, Unit: unit, Ours: ours, Goal: goal})
}

func (r *report) add(f figure) {
	f.Ratio = f.Ours
	if f.Other != 0 {
		f.Ratio = f.Ours / f.Other
	}
	if math.IsNaN(f.Ratio) || math.IsInf(f.Ratio, 0) {
		f.Ratio = 0
	}
	f.Met = f.Goal == 0 || f.AtLeast && f.Ratio >= f.Goal || !f.AtLeast && f.Ratio <= f.Goal
	r.Figures = append(r.Figures, f)
}

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// detail adds a number that explains the figures.
func (r *report) detail(name string, v float64) { r.Details[name] = v }

// finish prints the table and writes the JSON.
func (r *report) finish(out io.Writer, folder string) error {
	r.Took, r.Load[1] = time.Since(r.At).Round(time.Second).String(), loadAverage()
	fmt.Fprintf(out, "\n%s: N=%d, load average %s before, %s after, %s\n", r.Bench, r.Size, r.Load[0], r.Load[1], r.Took)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tOURS\tOTHER\tUNIT\tRATIO\tGOAL\tMET")
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.3g\t%s\t%s\n", f.Name, number(f.Ours), number(f.Other), f.Unit, f.Ratio, f.goal(), met(f))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range r.notes {
		fmt.Fprintln(out, "  "+n)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, r.Bench+".json"), append(text, '\n'), 0o600)
}

func (f figure) goal() string {
	switch {
	case f.Goal == 0:
		return "-"
	case f.AtLeast:
		return fmt.Sprintf(">= %.3g", f.Goal)
	}
	return fmt.Sprintf("<= %.3g", f.Goal)
}

func met(f figure) string {
	if f.Goal == 0 {
		return "-"
	}
	return map[bool]string{true: "yes", false: "NO"}[f.Met]
}

func number(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.4g", v)
}

// machine describes the machine and the versions.
func machine() map[string]string {
	m := map[string]string{"go": runtime.Version(), "os": runtime.GOOS + "/" + runtime.GOARCH, "cpus": fmt.Sprint(runtime.NumCPU())}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if slices.Contains([]string{"go.temporal.io/sdk", "github.com/jackc/pgx/v5"}, d.Path) {
				m[d.Path] = d.Version
			}
		}
	}
	return m
}

func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}

// quantile returns the q-quantile in milliseconds. It sorts the durations.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))].Seconds() * 1000
}

// median returns the median.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
