package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
)

// undeclared returns an error when the code of a refusal is not declared by its
// route, so that every test of a refusal checks the handlers against the API
// document. Answers without a route are not checked.
func undeclared(req *http.Request, a reply) error {
	if a.status < http.StatusBadRequest {
		return nil
	}
	var b schema.ErrorBody
	if err := json.Unmarshal(a.body, &b); err != nil {
		return fmt.Errorf("a refusal without an error envelope: %w", err)
	}
	mux, codes := http.NewServeMux(), map[string][]schema.Kind{}
	for _, r := range append(nodeapi.New(nodeapi.Config{}).Routes(), adminapi.New(adminapi.Config{}).Routes()...) {
		pattern := r.Method + " " + r.Path
		if codes[pattern] == nil { // both listeners serve the health check
			mux.Handle(pattern, http.NotFoundHandler())
		}
		codes[pattern] = append([]schema.Kind{schema.KindInvalidRequest, schema.KindServiceUnavailable, schema.KindInternal}, r.Kinds...)
	}
	_, pattern := mux.Handler(req)
	if pattern == "" || slices.Contains(codes[pattern], b.Error.Code) {
		return nil
	}
	return fmt.Errorf("%s answered %d with an undeclared code: %s", pattern, a.status, a.body)
}
