// Command rulecheck parses files of alert rules as Prometheus does: the form of the file, the
// expressions, and the templates of labels and annotations. Of Grafana dashboards (.json), it parses
// the queries. It uses the parser of promtool without promtool's service discovery, which takes
// minutes to build.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	if !check(os.Args[1:]) {
		os.Exit(1)
	}
}

// check reports whether all files are valid, and prints what is not.
func check(files []string) bool {
	valid := len(files) > 0
	for _, file := range files {
		var errs []error
		if filepath.Ext(file) == ".json" {
			errs = queries(file)
		} else {
			_, errs = rulefmt.ParseFile(file, false, model.LegacyValidation)
		}
		for _, err := range errs {
			fmt.Fprintln(os.Stderr, err)
		}
		valid = valid && len(errs) == 0
	}
	return valid
}

// queries parses the queries of a dashboard. It has at least one.
func queries(file string) (errs []error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return []error{err}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &board); err != nil {
		return []error{fmt.Errorf("%s: %w", file, err)}
	}
	// Grafana replaces these variables. All others are in matchers.
	intervals := strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h")
	found := 0
	for _, p := range board.Panels {
		for _, t := range p.Targets {
			found++
			if _, err := parser.ParseExpr(intervals.Replace(t.Expr)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", file, p.Title, err))
			}
		}
	}
	if found == 0 {
		errs = append(errs, fmt.Errorf("%s has no query", file))
	}
	return errs
}
