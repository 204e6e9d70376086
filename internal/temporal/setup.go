package temporal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// retention is how long a namespace that Setup creates keeps closed operations.
const retention = 30 * 24 * time.Hour

// setupBudget bounds Setup. A server refreshes its caches of namespaces and search
// attributes once a minute.
const setupBudget = 2 * time.Minute

// setupPause is the time between two checks whether a new object can be used.
const setupPause = 200 * time.Millisecond

// Setup creates what lacks of the namespace, the search attributes and the schedules, and
// waits until they can be used. It is idempotent. With Config.SkipNamespace, it only checks
// the first two. If the credential may not create them, the error says so; Instructions
// returns the commands for those who may.
func (c Installation) Setup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setupBudget)
	defer cancel()
	if err := c.ensureNamespace(ctx); err != nil {
		return err
	}
	if err := c.ensureAttributes(ctx); err != nil {
		return err
	}
	return c.ensureSchedules(ctx)
}

func (c Installation) ensureNamespace(ctx context.Context) error {
	_, err := c.Retention(ctx)
	missing := errors.Is(err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: reasonNoNamespace})
	if !missing || c.skipNamespace {
		return err
	}
	_, err = c.sdk.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: c.namespace, WorkflowExecutionRetentionPeriod: durationpb.New(retention),
		Description: "GPU node lifecycle operations (gpuaas)",
	})
	if is[*serviceerror.NamespaceAlreadyExists](err) {
		return nil
	}
	return c.interpret(err, "creating the namespace")
}

// Retention returns how long the namespace keeps closed operations.
func (c Installation) Retention(ctx context.Context) (time.Duration, error) {
	d, err := c.sdk.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: c.namespace})
	return d.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration(), c.interpret(err, "reading the namespace")
}

func (c Installation) ensureAttributes(ctx context.Context) error {
	missing, err := c.missingAttributes(ctx)
	for !c.skipNamespace && is[*serviceerror.NamespaceNotFound](err) && pause(ctx) { // a new namespace has not reached the server's cache
		missing, err = c.missingAttributes(ctx)
	}
	switch {
	case err != nil:
		return c.interpret(err, "listing search attributes")
	case len(missing) > 0 && c.skipNamespace:
		return c.attributesMissing(missing)
	case len(missing) > 0:
		_, err = c.sdk.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
			Namespace: c.namespace, SearchAttributes: missing,
		})
		if err != nil && !is[*serviceerror.AlreadyExists](err) {
			return c.interpret(err, "adding search attributes")
		}
	}
	err = c.useAttributes(ctx)
	for is[*serviceerror.InvalidArgument](err) && pause(ctx) { // they have not reached the server's cache
		err = c.useAttributes(ctx)
	}
	return c.unusable(err)
}

// pause waits before a repeated check. It returns false when ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(setupPause):
		return true
	}
}

// MissingAttributes returns nil when every search attribute can be used. The worker
// calls it before it starts: a missing attribute would block every operation.
func (c Installation) MissingAttributes(ctx context.Context) error {
	missing, err := c.missingAttributes(ctx)
	switch {
	case err != nil:
		return c.interpret(err, "listing search attributes")
	case len(missing) > 0:
		return c.attributesMissing(missing)
	}
	return c.unusable(c.useAttributes(ctx))
}

func (c Installation) attributesMissing(missing map[string]enumspb.IndexedValueType) error {
	return schema.NewError(schema.KindServiceUnavailable, "namespace %q lacks %d search attributes: %s", c.namespace, len(missing),
		strings.Join(slices.Sorted(maps.Keys(missing)), ", ")).WithReason(reasonNoAttributes).WithNext("gpuaas admin setup")
}

func (c Installation) unusable(err error) error {
	if is[*serviceerror.InvalidArgument](err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "a search attribute of namespace %q cannot be used", c.namespace).
			WithReason(reasonNoAttributes).WithNext("gpuaas admin setup")
	}
	return c.interpret(err, "using the search attributes")
}

// useAttributes counts operations with a query that names every search attribute, with
// values of its type. An attribute that is missing or has another type makes the query
// invalid. It needs no more than the permission to read.
func (c Installation) useAttributes(ctx context.Context) error {
	var terms []string
	for name, kind := range attributeTypes() {
		value := "none"
		if kind == enumspb.INDEXED_VALUE_TYPE_DATETIME {
			value = time.Unix(0, 0).UTC().Format(time.RFC3339)
		}
		terms = append(terms, fmt.Sprintf("%s = '%s'", name, value))
	}
	_, err := c.sdk.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{
		Namespace: c.namespace, Query: strings.Join(slices.Sorted(slices.Values(terms)), " AND ")})
	return err
}

func attributeTypes() map[string]enumspb.IndexedValueType {
	types := map[string]enumspb.IndexedValueType{}
	for name, datetime := range lifecycle.Attributes() {
		types[name] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
		if datetime {
			types[name] = enumspb.INDEXED_VALUE_TYPE_DATETIME
		}
	}
	return types
}

// missingAttributes returns the search attributes that the namespace lacks. It returns an
// error if one has another type, and none where a list is not allowed: useAttributes finds
// the first of them too.
func (c Installation) missingAttributes(ctx context.Context) (map[string]enumspb.IndexedValueType, error) {
	have, err := c.sdk.OperatorService().ListSearchAttributes(ctx,
		&operatorservice.ListSearchAttributesRequest{Namespace: c.namespace})
	if code := codeOf(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	missing := attributeTypes()
	var wrong []string
	for name, want := range attributeTypes() {
		is, exists := have.GetCustomAttributes()[name]
		if !exists {
			continue
		}
		delete(missing, name)
		if is != want {
			wrong = append(wrong, fmt.Sprintf("%s is %s and must be %s", name, is, want))
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return nil, schema.NewError(schema.KindServiceUnavailable, "search attributes of namespace %q have another type: %s", c.namespace, strings.Join(wrong, "; ")).
			WithReason("search_attribute_type").WithNext("use another namespace, or remove these attributes and run: gpuaas admin setup")
	}
	return missing, nil
}
