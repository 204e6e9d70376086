package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	if !check([]string{"../../deploy/observability/alerts.yaml"}) {
		t.Fatal("the alert rules are not valid")
	}
	boards, err := filepath.Glob("../../deploy/observability/dashboards/*.json")
	if err != nil || !check(boards) {
		t.Fatal("the queries of the dashboards are not valid", err)
	}
	for name, text := range map[string]string{"query": `{"panels": [{"targets": [{"expr": "sum by (state (up)"}]}]}`, "dashboard": `{"panels": []}`, "file": `{`} {
		file := filepath.Join(t.TempDir(), "board.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if check([]string{file}) {
			t.Fatalf("a wrong %s passes", name)
		}
	}
	for name, text := range map[string]string{"expression": "expr: sum((", "template": "expr: up\n    annotations: {summary: '{{ $value | nothing }}'}", "field": "expr: up\n    nothing: 1"} {
		file := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(file, []byte("groups:\n- name: x\n  rules:\n  - alert: A\n    "+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if check([]string{file}) {
			t.Fatalf("a wrong %s passes", name)
		}
	}
	if check(nil) {
		t.Fatal("no file passes")
	}
}
